"""Compression: the bytes that the package's own methods send, and the time of coding them."""

from itertools import pairwise

import pytest

pytest.importorskip("pydantic")

import ringreduce
from ringreduce.studies.plan import Job, Layer, Optimizer, Parameter, predict, strategy
from ringreduce.studies.plan.job import Coder
from tests.studies.plan.jobs import MB, cluster, job

WIDTHS = [64, 512, 300, 256, 256, 128, 1000, 10]
METHODS = {
    "power_sgd:matrix_rank=2": ("PowerSGD", {"matrix_rank": 2}),
    "power_sgd": ("PowerSGD", {}),
    "top_k:fraction=0.05": ("TopK", {"fraction": 0.05}),
    "sign_majority": ("SignMajority", {}),
    "bf16": ("HalfPrecision", {"dtype": "bf16"}),
    "int8": ("Int8Blocks", {}),
}


def made():
    layers = [
        Layer(
            name=str(n), forward_s=1, backward_s=1,
            parameters=[
                Parameter(name=f"{n}.weight", numel=a * b, rows=b), Parameter(name=f"{n}.bias", numel=b),
            ],
        )
        for n, (a, b) in enumerate(pairwise(WIDTHS))
    ]  # fmt: skip
    return Job(samples=2, layers=layers, optimizer=Optimizer())


def _bytes_sent(comm, methods):
    import torch

    from ringreduce import DataParallel, compression

    found = []
    for name, options in methods:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(WIDTHS)))
        wrapped = DataParallel(model, comm)
        state = getattr(compression, name)(group=comm, **options)
        wrapped.register_comm_hook(state, compression.hook)
        for _ in range(2):  # buckets are made again after the first step
            before = state.bytes_sent
            wrapped(torch.randn(2, WIDTHS[0])).sum().backward()
        found.append(state.bytes_sent - before)
    return found


def test_bytes_are_those_of_the_methods():
    pytest.importorskip("torch")
    world = 3
    measured = ringreduce.run(_bytes_sent, world, list(METHODS.values()))[0]
    for name, sent in zip(METHODS, measured, strict=True):
        operations = strategy(name).build(made(), world).all
        factors = {"all_reduce": 2 * (world - 1) / world, "all_gather": (world - 1) / world}
        planned = sum(factors.get(one.collective, (world - 1) / world) * one.nbytes for one in operations)
        assert planned == pytest.approx(sent, rel=0.03), name


@pytest.mark.parametrize(
    ("name", "part"), [("bf16", 0.5), ("fp16", 0.5), ("int8", 260 / 1024), ("fp8", 260 / 1024)]
)
def test_a_wire_format_shortens_messages(name, part):
    found, whole = (
        predict(job(), cluster(), strategy(each), 4).link_bytes for each in (name, "data_parallel")
    )
    assert found == pytest.approx(part * whole, rel=0.01)


def test_16_bit_gradients_are_not_narrowed_to_16_bits_again():
    layer = Layer(
        name="0",
        forward_s=1,
        backward_s=1,
        parameters=[Parameter(name="w", numel=MB, dtype="bfloat16", rows=1024)],
    )
    own = Job(samples=1, layers=[layer], optimizer=Optimizer())
    sizes = {
        name: next(one.nbytes for one in strategy(name).build(own, 2).all if one.collective)
        for name in ("data_parallel", "bf16", "int8")
    }
    assert sizes["bf16"] == sizes["data_parallel"] == 2 * MB and sizes["int8"] == MB * 260 / 256


@pytest.mark.parametrize("name", ["bf16", "int8", "sign_majority", "top_k", "power_sgd"])
def test_coding_takes_its_time(name):
    """A coder that takes longer than the backward pass is what the step waits for."""
    key = strategy(name).title if name in ("bf16", "int8") else name
    slow = job(coders={key: Coder(element_s=1e-6)})
    found = predict(slow, cluster(rate=1e12), strategy(name), 4)
    assert found.causes["compression"] > 0.8 * slow.elements * 1e-6 - 0.120
    assert found.exposed > 10 * predict(job(), cluster(rate=1e12), strategy(name), 4).exposed


def test_what_a_rank_gets_from_top_k_grows_with_the_ranks():
    sent = [predict(job(), cluster(hosts=n), strategy("top_k"), n).link_bytes for n in (2, 4, 16)]
    assert sent[2] == pytest.approx(15 * sent[0], rel=0.01) and sent[1] == pytest.approx(
        3 * sent[0], rel=0.01
    )


def test_this_machines_coders_are_measured():
    torch = pytest.importorskip("torch")
    from ringreduce.studies.plan.coders import measured_coders

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the processor's clock counts, whatever else the cores do
    try:
        found = measured_coders(torch.device("cpu"))
    finally:
        torch.set_num_threads(threads)
    assert {*found} == {"bf16", "fp16", "int8", "fp8", "power_sgd", "top_k", "sign_majority"}
    assert all(coder.element_s > 0 for coder in found.values()) and found["top_k"].received_s > 0
