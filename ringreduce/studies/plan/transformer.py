"""A transformer as a job: parameters, floating-point operations and activations by the published formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from ringreduce.settings import Table, first_problem, load
from ringreduce.studies.plan.job import DTYPES, Dtype, Job, Layer, Optimizer, Parameter
from ringreduce.studies.simulate.rates import check_unit
from ringreduce.studies.simulate.topologies import PositiveRate

__all__ = ["Transformer", "read_job"]

KEPT = {"none": 34, "attention": 34, "layers": 2}  # bytes for each token and unit of width


class Transformer(Table):
    """A decoder-only transformer, and the device that computes it.

    A layer has 12 h^2 parameters in matrices, and a token takes 24 h^2 + 4 s h floating-point operations in its forward
    pass and twice as many in its backward pass (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM", SC 2021, appendix). A layer keeps s b h (34 + 5 a s / h) bytes of activations in 16-bit
    floats (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023).

    Attributes:
        layers, width, heads: The number of layers, h, and the number of attention heads, a.
        sequence: The tokens of a sequence, s.
        vocabulary: The number of tokens that there are.
        batch: The sequences in one rank's forward and backward pass, b.
        feed_forward: The width inside the feed-forward part. None means 4 h.
        dtype: The dtype of parameters, gradients and activations.
        recompute: What the backward pass computes again: "none"; "attention", as fused attention kernels do, at no
            cost here; or "layers", which costs another forward pass.
        flops: The device's floating-point operations per second.
        efficiency: The part of them that the computation reaches.
        memory_rate: The bytes per second of the device's memory, which bounds the optimizer and copies.
        state_bytes: The optimizer's state for each parameter, in bytes. None means Adam: 8, and 12 where a copy in
            float32 accompanies 16-bit parameters.
    """

    layers: PositiveInt
    width: PositiveInt
    heads: PositiveInt
    sequence: PositiveInt
    vocabulary: PositiveInt
    batch: PositiveInt
    feed_forward: PositiveInt | None = None
    dtype: Dtype = "bfloat16"
    recompute: Literal["none", "attention", "layers"] = "attention"
    flops: PositiveFloat
    efficiency: float = Field(default=0.4, gt=0, le=1)
    memory_rate: PositiveRate
    state_bytes: PositiveFloat | None = None

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Transformer:
        if self.width % self.heads:
            raise ValueError(f"width, {self.width}, must be a multiple of heads, {self.heads}")
        return self

    def job(self, name: str) -> Job:
        """Returns the job. It has three layers for each block: attention, feed-forward and the norms."""
        h, tokens = self.width, self.batch * self.sequence
        inner = self.feed_forward or 4 * h
        size = DTYPES[self.dtype]
        state = self.state_bytes or (8 if size >= 4 else 12)
        scores = 5 * self.heads * self.sequence / h if self.recompute == "none" else 0
        kept = round(tokens * h * (KEPT[self.recompute] + scores) * size / 2)
        out = tokens * h * size
        tables = {"token": self.vocabulary * h, "position": self.sequence * h}
        layers = [self._layer("embedding", "", tables, output=out)]
        for number in range(self.layers):
            unit = f"block {number}"
            attention = {"norm.weight": h, "norm.bias": h, "qkv.weight": 3 * h * h, "qkv.bias": 3 * h,
                         "out.weight": h * h, "out.bias": h}  # fmt: skip
            feed = {"norm.weight": h, "norm.bias": h, "up.weight": h * inner, "up.bias": inner,
                    "down.weight": inner * h, "down.bias": h}  # fmt: skip
            more = 4.0 * self.sequence * h * tokens
            layers.append(
                self._layer(f"{unit} attention", unit, attention, 8.0 * h * h * tokens + more, kept, out)
            )
            layers.append(
                self._layer(f"{unit} feed-forward", unit, feed, 4.0 * h * inner * tokens, output=out)
            )
        logits = 2.0 * h * self.vocabulary * tokens
        layers.append(
            self._layer("head", "", {"norm.weight": h, "norm.bias": h}, logits, 4 * tokens * self.vocabulary)
        )
        # Adam reads the gradient, reads and writes its state, and writes the parameter.
        update = Optimizer(state_bytes=state, element_s=(2 * size + 2 * state) / self.memory_rate)
        return Job(
            name=name, samples=tokens, unit="tokens", layers=layers, optimizer=update,
            copy_rate=self.memory_rate / 2,
        )  # fmt: skip

    def _layer(
        self, name: str, unit: str, parameters: dict[str, int], forward: float = 0.0, kept: int = 0, output: int = 0
    ) -> Layer:  # fmt: skip
        seconds = forward / (self.flops * self.efficiency)
        again = seconds if self.recompute == "layers" and unit else 0.0
        return Layer(
            name=name, unit=unit, forward_s=seconds, backward_s=2 * seconds + again, activation_bytes=kept,
            output_bytes=output,
            parameters=[
                Parameter(
                    name=f"{name} {part}", numel=numel, dtype=self.dtype,
                    rows=numel // self.width if numel > self.width and not part.endswith("bias") else None,
                )
                for part, numel in parameters.items()
            ],
        )  # fmt: skip


class _Described(Table):
    transformer: Transformer


def read_job(path: Path) -> Job:
    """Reads a job from a JSON or TOML file: a recording, or a table ``[transformer]``.

    Raises:
        ValueError: The file cannot be read, or something in it is wrong. The message is one line that names the file
            and the place in it.
    """
    table = load(path)
    check_unit(path, table, "transformer", "memory_rate")
    try:
        if "transformer" in table:
            return _Described.model_validate(table).transformer.job(path.stem)
        return Job.model_validate(table)
    except ValidationError as error:
        raise ValueError(f"{path}: {first_problem(error)}") from error
