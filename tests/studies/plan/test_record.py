"""Jobs that are recorded from real steps."""

from pathlib import Path

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("torch")

import torch

from ringreduce.studies.plan import read_job
from ringreduce.studies.plan.record import record


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))


def train(made, optimizer, steps, backward=True):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = made(torch.randn(32, 64)).square().mean()
        if backward:
            loss.backward()
        optimizer.step()


def test_a_recording_has_the_layers_with_their_times_and_sizes(tmp_path):
    made = model()
    optimizer = torch.optim.Adam(made.parameters())
    with record(tmp_path / "job.json", made, optimizer, samples=32):
        train(made, optimizer, 5)
        with torch.no_grad():
            made(torch.randn(32, 64))  # an evaluation is not part of a step
    job = read_job(Path(tmp_path / "job.json"))
    assert [layer.name for layer in job.layers] == ["0", "2"] and job.samples == 32
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in job.layers)
    assert [parameter.numel for _, parameter in job.arrivals()] == [8, 8 * 512, 512, 512 * 64]
    assert job.optimizer.state_bytes == pytest.approx(8) and job.optimizer.element_s > 0
    # The first layer keeps its input; the second one the result of ReLU.
    assert job.layers[1].activation_bytes == 4 * 32 * 512 and job.layers[0].activation_bytes == 4 * 32 * 64


def test_the_hooks_are_gone_after_the_block(tmp_path):
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


def test_blocks_of_a_model_are_units(tmp_path):
    made = torch.nn.ModuleDict({"first": torch.nn.Linear(64, 64), "h": torch.nn.Sequential(model())})
    made.forward = lambda x: made["h"](made["first"](x))
    optimizer = torch.optim.SGD(made.parameters())
    with record(tmp_path / "job.json", made, optimizer, samples=1):
        train(made, optimizer, 3)
    assert [layer.unit for layer in read_job(tmp_path / "job.json").layers] == ["", "h.0", "h.0"]
