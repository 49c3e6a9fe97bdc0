"""A training job: what one rank computes in a step, layer by layer. Recorded from a real step, or described."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from ringreduce.settings import Table

__all__ = ["DTYPES", "Coder", "Dtype", "Job", "Layer", "Optimizer", "Overhead", "Parameter"]

Dtype = Literal["float32", "float64", "float16", "bfloat16"]
DTYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


class Parameter(Table):
    """A parameter tensor.

    Attributes:
        name: Its name, for error messages.
        numel: The number of elements.
        dtype: The dtype of the parameter and of its gradient.
        rows: The length of its first axis, if it has several. PowerSGD compresses only these.
    """

    name: str
    numel: PositiveInt
    dtype: Dtype = "float32"
    rows: PositiveInt | None = None

    @property
    def nbytes(self) -> int:
        return self.numel * DTYPES[self.dtype]


class Layer(Table):
    """A part of the model. Its gradients come when its backward pass ends.

    Attributes:
        name: Its name.
        unit: The part of the model that FSDP gathers at once, such as a transformer's block. Layers of one unit follow
            one another. Without a unit, the layer belongs to the root.
        forward_s: The seconds of its forward pass on one rank.
        backward_s: The seconds of its backward pass on one rank.
        parameters: Its parameters, in the reverse of the order in which their gradients come.
        activation_bytes: The bytes that its forward pass keeps for the backward pass.
        output_bytes: The bytes of its result, which other ranks need if they have another part of the layer, or the
            next one.
    """

    name: str
    unit: str = ""
    forward_s: NonNegativeFloat
    backward_s: NonNegativeFloat
    parameters: list[Parameter] = Field(default_factory=list)
    activation_bytes: NonNegativeInt = 0
    output_bytes: NonNegativeInt = 0

    @property
    def nbytes(self) -> int:
        """The bytes of its parameters."""
        return sum(parameter.nbytes for parameter in self.parameters)


class Coder(Table):
    """The time that compressing gradients takes.

    Attributes:
        element_s: The seconds for each element of the gradients.
        tensor_s: The seconds for each tensor.
        received_s: The seconds for each element that other ranks have sent.
    """

    element_s: NonNegativeFloat = 0.0
    tensor_s: NonNegativeFloat = 0.0
    received_s: NonNegativeFloat = 0.0


class Overhead(Table):
    """The time that a strategy's own code takes on the processor, besides computations, copies and collectives.

    Attributes:
        step_s: The seconds for each step.
        tensor_s: The seconds for each parameter in a forward and backward pass.
        unit_s: The seconds for each unit of FSDP2 in a forward and backward pass.
        update_s: The seconds for each parameter when it is updated.
    """

    step_s: NonNegativeFloat = 0.0
    tensor_s: NonNegativeFloat = 0.0
    unit_s: NonNegativeFloat = 0.0
    update_s: NonNegativeFloat = 0.0


# Of each gradient in float32, how many copies take as long as its compression, where that was not measured.
COPIES = {"bf16": 2, "fp16": 2, "int8": 3, "fp8": 3, "sign_majority": 8, "top_k": 8, "power_sgd": 6}


class Optimizer(Table):
    """The optimizer's step.

    Attributes:
        state_bytes: The bytes of state for each element of the parameters: 8 for Adam in float32, 12 with a copy of
            16-bit parameters in float32 (Rajbhandari et al., "ZeRO", SC 2020).
        element_s: The seconds for each element.
        tensor_s: The seconds for each tensor.
    """

    state_bytes: NonNegativeFloat = 8.0
    element_s: NonNegativeFloat = 0.0
    tensor_s: NonNegativeFloat = 0.0


class Job(Table):
    """One rank's step of a training job, without communication.

    Attributes:
        name: What it is, for readers.
        samples: The samples (or tokens) that one rank's forward and backward pass processes.
        unit: What is counted: "samples" or "tokens".
        layers: The layers, in the order of the forward pass. The backward pass visits them in reverse.
        optimizer: The optimizer's step.
        other_s: The seconds of a step outside the forward pass, the backward pass and the optimizer.
        threads: The cores that the computation keeps busy, if it runs on CPUs.
        copy_rate: The bytes per second at which gradients are copied into buckets.
        coders: The time of compression by method. Methods that are missing take as long as some copies.
        overheads: The time of strategies' own code by strategy, if the computation waits for it: on a CPU. Those that
            are missing take none.
    """

    name: str = "job"
    samples: PositiveInt
    unit: str = "samples"
    layers: list[Layer] = Field(min_length=1)
    optimizer: Optimizer = Optimizer()
    other_s: NonNegativeFloat = 0.0
    threads: PositiveInt = 1
    copy_rate: PositiveFloat = math.inf
    coders: dict[str, Coder] = Field(default_factory=dict)
    overheads: dict[str, Overhead] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _can_be_trained(self) -> Job:
        if not any(layer.parameters for layer in self.layers):
            raise ValueError("layers: no layer has parameters")
        if not any(layer.backward_s for layer in self.layers):
            raise ValueError("layers: no layer has a backward pass, backward_s is 0 everywhere")
        if len({layer.name for layer in self.layers}) < len(self.layers):
            raise ValueError("layers: two layers have the same name")
        return self

    def arrivals(self) -> Iterator[tuple[int, Parameter]]:
        """Yields each parameter with its layer's number, in the order in which the gradients come."""
        for number in reversed(range(len(self.layers))):
            for parameter in reversed(self.layers[number].parameters):
                yield number, parameter

    @property
    def nbytes(self) -> int:
        """The bytes of all parameters."""
        return sum(parameter.nbytes for _, parameter in self.arrivals())

    @property
    def elements(self) -> int:
        """The number of elements of all parameters."""
        return sum(parameter.numel for _, parameter in self.arrivals())

    @property
    def tensors(self) -> int:
        """The number of parameters."""
        return sum(1 for _ in self.arrivals())

    @property
    def activation_bytes(self) -> int:
        """The bytes that a forward pass keeps."""
        return sum(layer.activation_bytes for layer in self.layers)

    def update_s(self, elements: float = 1.0, tensors: float = 1.0) -> float:
        """Returns the seconds of the optimizer's step for a share of all elements, in a share of all tensors."""
        return (
            self.optimizer.element_s * self.elements * elements
            + self.optimizer.tensor_s * self.tensors * tensors
        )

    def overhead(self, name: str) -> Overhead:
        """Returns the time that a strategy's own code takes."""
        return self.overheads.get(name) or Overhead()

    def coder(self, name: str) -> Coder:
        """Returns the time of a method of compression."""
        return self.coders.get(name) or Coder(
            element_s=4 * COPIES[name] / self.copy_rate, received_s=8 / self.copy_rate
        )

    def save(self, path: Path) -> None:
        """Writes the job as JSON."""
        path.write_text(self.model_dump_json(indent=1, exclude_defaults=True) + "\n")
