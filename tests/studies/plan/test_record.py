"""Jobs that are recorded from real steps."""

import time
from pathlib import Path

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("torch")

import torch

from ringreduce.studies.plan import read_job
from ringreduce.studies.plan.overheads import TENSORS, clock_of, tensor_seconds
from ringreduce.studies.plan.record import Recorder, record

PAUSE = 0.1  # seconds
HIDDEN = 4096  # so many elements that they take most of an optimizer's step, however busy the cores


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 8))


def train(made, optimizer, steps, backward=True):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = made(torch.randn(32, 64)).square().mean()
        if backward:
            loss.backward()
        optimizer.step()


def test_a_recording_has_the_layers_with_their_times_and_sizes(tmp_path, only_the_model):
    made = model()
    optimizer = torch.optim.Adam(made.parameters())
    with record(tmp_path / "job.json", made, optimizer, samples=32):
        train(made, optimizer, 5)
        with torch.no_grad():
            made(torch.randn(32, 64))  # an evaluation is not part of a step
    job = read_job(Path(tmp_path / "job.json"))
    assert [layer.name for layer in job.layers] == ["0", "2"] and job.samples == 32
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in job.layers)
    assert [parameter.numel for _, parameter in job.arrivals()] == [8, 8 * HIDDEN, HIDDEN, HIDDEN * 64]
    assert job.optimizer.state_bytes == pytest.approx(8) and job.optimizer.element_s > 0
    # The first layer keeps its input; the second one the result of ReLU.
    assert job.layers[1].activation_bytes == 4 * 32 * HIDDEN and job.layers[0].activation_bytes == 4 * 32 * 64


@pytest.mark.slow
def test_what_else_uses_the_core_of_a_thread_does_not_count(tmp_path, only_the_model):
    class Interrupted(torch.nn.Linear):
        def forward(self, x):
            time.sleep(PAUSE)
            return super().forward(x)

    made, threads = Interrupted(8, 8), torch.get_num_threads()
    optimizer = torch.optim.SGD(made.parameters())
    torch.set_num_threads(1)
    try:
        with record(tmp_path / "job.json", made, optimizer, samples=1):
            for _ in range(4):
                optimizer.zero_grad()
                made(torch.randn(4, 8)).sum().backward()
                optimizer.step()
    finally:
        torch.set_num_threads(threads)
    assert read_job(tmp_path / "job.json").layers[0].forward_s < PAUSE / 2


def test_what_else_uses_the_core_of_an_optimizer_does_not_count():
    class Interrupted(torch.optim.SGD):
        def step(self, closure=None):
            time.sleep(PAUSE / 10)
            return super().step(closure)

    found = tensor_seconds(Interrupted([torch.nn.Parameter(torch.zeros(1))]), torch.device("cpu"))
    assert 0 < found * TENSORS < PAUSE / 10


class LateDevice:
    """A GPU and a clock, emulated: what the GPU is asked for takes its time when it is synchronised."""

    def __init__(self):
        self.late = self.now = 0.0

    def synchronize(self, _device=None):
        self.now, self.late = self.now + self.late, 0.0

    def clock(self):
        self.now += 1e-6
        return self.now

    def layer(self, seconds):
        class Work(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                self.late += seconds
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                self.late += 2 * seconds
                return gradient.clone()

        made = torch.nn.Linear(8, 8)
        made.forward = lambda x: Work.apply(torch.nn.functional.linear(x, made.weight, made.bias))
        return made


def test_work_that_a_gpu_has_not_done_yet_counts_for_its_layer(monkeypatch, only_the_model):
    gpu = LateDevice()
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr("ringreduce.studies.plan.overheads.perf_counter", gpu.clock)
    made = torch.nn.Sequential(gpu.layer(0.02), gpu.layer(0.002))
    optimizer = torch.optim.SGD(made.parameters())
    recorder = Recorder(made, optimizer)
    recorder._on_gpu, recorder._clock = True, clock_of(torch.device("cuda"))
    with recorder.hooks:
        for _ in range(5):
            optimizer.zero_grad()
            made(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    job = recorder.job("late", 4, "samples")
    assert [layer.forward_s for layer in job.layers] == pytest.approx([0.02, 0.002], rel=0.01)
    assert [layer.backward_s for layer in job.layers] == pytest.approx([0.04, 0.004], rel=0.01)
    assert job.threads == 1 and not job.overheads


def test_the_hooks_are_gone_after_the_block(tmp_path, only_the_model):
    made = model()
    optimizer = torch.optim.SGD(made.parameters())
    with record(tmp_path / "job.json", made, optimizer, samples=1):
        train(made, optimizer, 3)
    before = (tmp_path / "job.json").read_text()
    train(made, optimizer, 1)
    assert not made._forward_hooks and (tmp_path / "job.json").read_text() == before


@pytest.mark.parametrize(
    ("steps", "backward", "message"),
    [
        (2, True, "job.json: the recording has 2 whole steps, and needs at least 3"),
        (4, False, "job.json: the recording has no backward pass: no parameter of the model got a gradient"),
    ],
)
def test_what_a_recording_lacks_is_named(tmp_path, steps, backward, message):
    made = model()
    optimizer = torch.optim.SGD(made.parameters())
    with pytest.raises(ValueError) as error, record(tmp_path / "job.json", made, optimizer, samples=1):
        train(made, optimizer, steps, backward)
    assert message in str(error.value) and not (tmp_path / "job.json").exists()


def test_blocks_of_a_model_are_units(tmp_path, only_the_model):
    made = torch.nn.ModuleDict({"first": torch.nn.Linear(64, 64), "h": torch.nn.Sequential(model())})
    made.forward = lambda x: made["h"](made["first"](x))
    optimizer = torch.optim.SGD(made.parameters())
    with record(tmp_path / "job.json", made, optimizer, samples=1):
        train(made, optimizer, 3)
    assert [layer.unit for layer in read_job(tmp_path / "job.json").layers] == ["", "h.0", "h.0"]


@pytest.mark.slow
def test_a_recording_on_a_cpu_has_the_time_of_each_strategys_code(tmp_path):
    made = model()
    optimizer = torch.optim.Adam(made.parameters())
    with record(tmp_path / "job.json", made, optimizer, samples=32):
        train(made, optimizer, 5)
    job = read_job(tmp_path / "job.json")
    assert job.optimizer.tensor_s > 0
    # FSDP2 does most for each unit, and its tensors are of a type whose operations take longer.
    assert job.overhead("fsdp2").unit_s > job.overhead("ddp").tensor_s
    assert job.overhead("fsdp2").update_s > job.optimizer.tensor_s
    assert job.overhead("data_parallel").tensor_s > 0


@pytest.mark.slow
def test_an_optimizer_that_cannot_be_made_again_counts_by_elements(tmp_path, only_the_model):
    class Odd(torch.optim.SGD):
        def __init__(self, parameters, needed):
            super().__init__(parameters, lr=0.1)

    made = model()
    optimizer = Odd(made.parameters(), 1)
    with record(tmp_path / "job.json", made, optimizer, samples=32):
        train(made, optimizer, 5)
    found = read_job(tmp_path / "job.json").optimizer
    assert found.tensor_s == 0 and found.element_s > 0
