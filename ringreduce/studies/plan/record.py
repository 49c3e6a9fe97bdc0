"""Records a job from real training steps of one rank, by torch's hooks."""

from __future__ import annotations

import re
import runpy
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from ringreduce.studies.plan.coders import measured_coders
from ringreduce.studies.plan.job import DTYPES, Job, Layer, Optimizer, Parameter
from ringreduce.studies.plan.overheads import clock_of, measured_overheads, tensor_seconds

__all__ = ["record", "record_program"]

WARM_UP = 2  # steps that are not counted: memory is allocated and kernels are chosen in them
LEAST_COPIED, MOST_COPIED = 1 << 20, 1 << 27  # bytes of the copy that is timed
OTHERS = 3  # times as many bytes in a step besides gradients: parameters, and Adam's state


@contextmanager
def record(
    path: Path | str, model: Any, optimizer: Any, samples: int, unit: str = "samples"
) -> Iterator[None]:
    """Records the training steps in the block, and writes the job to a file.

    A layer is a module with parameters of its own. The time between two layers belongs to the later one. Times are
    medians over the steps, without the first two. If one thread computes, they are the processor's times, so other
    programs on its core do not count. On a GPU, the device is synchronised at each layer, so steps take longer while
    they are recorded.

    Args:
        path: The JSON file.
        model: The model. Each step calls it once, in training mode.
        optimizer: Its optimizer, whose ``step()`` ends each step.
        samples: The samples (or tokens) of a step.
        unit: What is counted: "samples" or "tokens".

    Raises:
        ValueError: The block has fewer than three whole steps, or steps without a backward pass. The message names
            the file.
    """
    recorder = Recorder(model, optimizer)
    with recorder.hooks:
        yield
    _written(recorder, Path(path), samples, unit)


def record_program(
    path: Path, program: Path, arguments: list[str], samples: int, unit: str = "samples"
) -> None:
    """Runs a training program and records it, as :func:`record` does.

    The model is the first module that the program calls in training mode, and the optimizer is the first that makes a
    step. The program's first step is not recorded.

    Raises:
        ValueError: The program cannot be read, or does not train as :func:`record` demands.
    """
    recorders: list[Recorder] = []
    called: list[Any] = []

    def note(module: Any, _inputs: Any) -> None:
        if not called and module.training and torch.is_grad_enabled():
            called.append(module)

    def attach(optimizer: Any, _inputs: Any, _names: Any) -> None:
        if called and not recorders:
            recorders.append(Recorder(called[0], optimizer))

    if not program.is_file():
        raise ValueError(f"{program}: there is no such program")
    noting = register_module_forward_pre_hook(note)
    attaching = register_optimizer_step_post_hook(attach)
    before, sys.argv = sys.argv, [str(program), *arguments]
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        sys.argv = before
        noting.remove()
        attaching.remove()
        for recorder in recorders:
            recorder.hooks.close()
    if not recorders:
        raise ValueError(f"{program}: no optimizer made a step after a model was called in training mode")
    _written(recorders[0], path, samples, unit)


def _written(recorder: Recorder, path: Path, samples: int, unit: str) -> None:
    try:
        recorder.job(path.stem, samples, unit).save(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


class Recorder:
    """Notes when layers, gradients and the optimizer are done.

    Attributes:
        hooks: Removes all hooks when it is closed.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._layers = {
            name: [(each, one) for each, one in module.named_parameters(recurse=False) if one.requires_grad]
            for name, module in model.named_modules()
        }
        self._layers = {name: own for name, own in self._layers.items() if own}
        self._owner = {id(one): name for name, own in self._layers.items() for _, one in own}
        self._parameters = {one.data_ptr() for own in self._layers.values() for _, one in own}
        self._device = next(
            (one.device for own in self._layers.values() for _, one in own), torch.device("cpu")
        )
        self._on_gpu, self._clock = self._device.type == "cuda", clock_of(self._device)
        self._optimizer = optimizer
        self._spent: dict[tuple[str, str], list[float]] = defaultdict(list)  # by kind and layer: of each step
        self._now: dict[tuple[str, str], float] = defaultdict(float)  # of this step
        self._kept: dict[str, int] = defaultdict(int)
        self._results: dict[str, int] = {}
        self._order: list[str] = []  # layers, as their last gradient came
        self._mark = self._began = 0.0
        self._steps = 0
        self._saving: Any = None
        self.hooks = ExitStack()
        self._attach(model, optimizer)

    def _attach(self, model: Any, optimizer: Any) -> None:
        handles = [
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._forward_ended),
        ]
        for name, module in model.named_modules():
            if name in self._layers:
                handles.append(
                    module.register_forward_hook(lambda *found, name=name: self._forward(name, found[-1]))
                )
        for own in self._layers.values():
            handles += [one.register_post_accumulate_grad_hook(self._gradient) for _, one in own]
        handles.append(optimizer.register_step_pre_hook(lambda *_: self._update()))
        handles.append(optimizer.register_step_post_hook(lambda *_: self._end()))
        for handle in handles:
            self.hooks.callback(handle.remove)

    def _pass_time(self) -> float:
        """Returns the seconds since the last call."""
        before, self._mark = self._mark, self._clock()
        return self._mark - before

    def _begin(self, module: Any, _inputs: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        between = self._pass_time()
        if self._steps:
            self._now["other", ""] += between
        if not self._steps:
            self._saving = torch.autograd.graph.saved_tensors_hooks(self._save, lambda saved: saved)
            self._saving.__enter__()
            self._seen: set[int] = set()

    def _save(self, tensor: Any) -> Any:
        place = tensor.untyped_storage().data_ptr()
        if place not in self._seen and place not in self._parameters:
            self._seen.add(place)
            self._kept[""] += tensor.untyped_storage().nbytes()
        return tensor

    def _forward(self, name: str, result: Any) -> None:
        if torch.is_grad_enabled():
            self._results[name] = result.nbytes if isinstance(result, torch.Tensor) else 0
            self._now["forward", name] += self._pass_time()
            self._kept[name] += self._kept.pop("", 0)

    def _forward_ended(self, module: Any, _inputs: Any, _outputs: Any) -> None:
        if self._saving is not None:
            self._saving.__exit__(None, None, None)
            self._saving = None
            self._kept[list(self._layers)[-1]] += self._kept.pop("", 0)
        if module.training and torch.is_grad_enabled():
            self._now["forward", list(self._layers)[-1]] += self._pass_time()

    def _gradient(self, parameter: Any) -> None:
        name = self._owner[id(parameter)]
        self._now["backward", name] += self._pass_time()
        if name in self._order:
            self._order.remove(name)
        self._order.append(name)

    def _update(self) -> None:
        self._now["other", ""] += self._pass_time()  # clipping, and what else follows the backward pass

    def _end(self) -> None:
        self._now["optimizer", ""] += self._pass_time()
        self._steps += 1
        if self._steps > WARM_UP:
            for key, seconds in self._now.items():
                self._spent[key].append(seconds)
        self._now.clear()

    def _median(self, kind: str, name: str = "") -> float:
        return statistics.median(self._spent[kind, name]) if self._spent[kind, name] else 0.0

    def job(self, name: str, samples: int, unit: str) -> Job:
        """Returns the recorded job."""
        if self._steps <= WARM_UP:
            raise ValueError(
                f"the recording has {self._steps} whole steps, and needs at least {WARM_UP + 1}: each calls the model "
                "in training mode and ends with the optimizer's step()"
            )
        if not self._order:
            raise ValueError("the recording has no backward pass: no parameter of the model got a gradient")
        sizes = [one.numel() for own in self._layers.values() for _, one in own]
        elements, tensor_s = sum(sizes), tensor_seconds(self._optimizer, self._device)
        element_s = max(self._median("optimizer") - tensor_s * len(sizes), 0.0) / elements
        state = sum(
            value.nbytes
            for kept in self._optimizer.state.values()
            for value in kept.values()
            if isinstance(value, torch.Tensor) and value.dim()
        )
        never = [each for each in self._layers if each not in self._order]
        return Job(
            name=name, samples=samples, unit=unit, layers=[self._layer(each) for each in [*never, *self._order[::-1]]],
            optimizer=Optimizer(state_bytes=state / elements, element_s=element_s, tensor_s=tensor_s),
            other_s=self._median("other"), threads=1 if self._on_gpu else torch.get_num_threads(),
            copy_rate=_copy_rate(4 * elements, self._device), coders=measured_coders(self._device),
            overheads={} if self._on_gpu else measured_overheads(type(self._optimizer).__name__),
        )  # fmt: skip

    def _layer(self, name: str) -> Layer:
        block = re.match(r"(?:.*?\.)?\d+(?=\.|$)", name)
        return Layer(
            name=name or "model", unit=block[0] if block else "", forward_s=self._median("forward", name),
            backward_s=self._median("backward", name), activation_bytes=self._kept.get(name, 0),
            output_bytes=self._results.get(name, 0),
            parameters=[
                Parameter(
                    name=f"{name}.{each}", numel=one.numel(), dtype=_dtype(one, f"{name}.{each}"),
                    rows=one.shape[0] if one.dim() > 1 else None,
                )
                for each, one in self._layers[name]
            ],
        )  # fmt: skip


def _dtype(parameter: Any, name: str) -> Any:
    dtype = str(parameter.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ValueError(f"parameter {name} is {dtype}; plans know {', '.join(DTYPES)}")
    return dtype


def _copy_rate(nbytes: int, device: Any) -> float:
    """Returns the bytes a second at which gradients are copied into buckets.

    Between two steps, training touches more memory than caches hold, so the copies begin with neither in the cache.
    """
    size = min(max(nbytes, LEAST_COPIED), MOST_COPIED) // 4
    source, others = torch.ones(size, device=device), torch.ones(OTHERS * size, device=device)
    target, times, clock = torch.empty_like(source), [], clock_of(device)
    for _ in range(5):
        others.add_(1)
        began = clock()
        target.copy_(source)
        times.append(clock() - began)
    return 4 * size / statistics.median(times)
