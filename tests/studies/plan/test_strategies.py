"""What strategies do in a step: the collectives, their bytes and order, and the memory."""

import math
from itertools import pairwise

import pytest

pytest.importorskip("pydantic")

import ringreduce
from ringreduce.studies.plan import Job, Layer, Optimizer, Parameter, predict, strategy
from tests.studies.plan.jobs import MB, cluster, job


def sent(name, made, world=4):
    steps = strategy(name).build(made, world).all
    return [(one.collective, one.nbytes / MB) for one in steps if one.collective and one.name != "verdict"]


def test_ddp_sends_a_small_bucket_first_and_then_full_ones():
    assert sent("ddp", job(layers=30)) == [
        ("all_reduce", 2),
        ("all_reduce", 26),
        ("all_reduce", 26),
        ("all_reduce", 6),
    ]


def test_data_parallel_halves_what_remains():
    assert sent("data_parallel", job(layers=30)) == [("all_reduce", size) for size in (2, 26, 16, 8, 4, 2, 2)]


def test_zero1_adds_the_gathering_of_all_parameters():
    made = job(layers=4)
    assert (
        sent("zero1:bucket_mb=4", made) == sent("data_parallel:bucket_mb=4", made) + [("all_gather", 4)] * 2
    )


def test_zero2_scatters_gradients_and_gathers_parameters():
    found = sent("zero2:bucket_mb=4", job(layers=4))
    assert [name for name, _ in found] == ["reduce_scatter"] * 2 + ["all_gather"] * 2
    assert [size for _, size in found] == [4, 4] * 2


def test_zero2_computes_no_third_bucket_before_the_first_has_been_sent():
    steps = strategy("zero2:bucket_mb=2").build(job(layers=4), 4).all
    third = next(one for one in steps if one.kind == "backward" and one.name == "layer 1")
    assert [steps[number].name for number in third.after] == ["bucket 0"]


def test_fsdp2_gathers_each_unit_twice_or_once_if_it_keeps_the_parameters():
    assert [name for name, _ in sent("fsdp2", job(layers=3))].count("all_gather") == 6
    assert [name for name, _ in sent("fsdp2:reshard=false", job(layers=3))].count("all_gather") == 3
    assert [name for name, _ in sent("fsdp2", job(layers=3))].count("reduce_scatter") == 3


def test_fsdp2_gathers_a_unit_while_the_one_before_it_computes():
    steps = strategy("fsdp2").build(job(layers=3), 4).all
    gathered = [one for one in steps if one.collective == "all_gather"]
    # The third unit may be gathered when the first has been computed.
    assert [steps[number].name for number in gathered[2].after] == ["layer 0"]
    waiting = strategy("fsdp2:prefetch=false").build(job(layers=3), 4).all
    gathered = [one for one in waiting if one.collective == "all_gather"]
    assert [waiting[number].name for number in gathered[2].after] == ["layer 1"]


def test_accumulation_computes_more_and_sends_as_much():
    once, thrice = (strategy(f"data_parallel:accumulation={n}").build(job(), 4).all for n in (1, 3))
    assert [one.nbytes for one in once if one.collective] == [one.nbytes for one in thrice if one.collective]
    assert sum(one.kind == "forward" for one in thrice) == 3 * sum(one.kind == "forward" for one in once)


def test_memory_of_adam_by_stage():
    """Table of the ZeRO paper: 4 + 4 + 8 bytes for each element in float32."""
    made, world = job(layers=4, nbytes=2 * MB), 4
    whole = 8 * MB
    zero1 = strategy("zero1").memory(made, world)
    assert (zero1.parameters, zero1.gradients, zero1.optimizer) == (whole, whole, 2 * whole / world)
    zero2 = strategy("zero2").memory(made, world)
    assert (zero2.parameters, zero2.gradients, zero2.optimizer) == (whole, whole / world, 2 * whole / world)
    fsdp2 = strategy("fsdp2").memory(made, world)
    assert fsdp2.parameters == fsdp2.gradients == whole / world and fsdp2.activations == 4000
    assert strategy("ddp").memory(made, world).total == whole * 5 + 4000
    assert strategy("data_parallel").memory(made, world).total == whole * 4 + 4000


def _buckets(comm, widths, limits):
    import torch

    from ringreduce import DataParallel

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(widths)))
    wrapped = DataParallel(model, comm, first_bucket_mb=limits[0], bucket_mb=limits[1])
    for _ in range(2):
        wrapped(torch.randn(2, widths[0])).sum().backward()
    return [bucket.nbytes for bucket in wrapped.timings.buckets]


@pytest.mark.parametrize("limits", [(1.0, 25.0), (0.05, 0.3), (0.1, 10.0)])
def test_buckets_are_those_of_data_parallel(limits):
    pytest.importorskip("torch")
    widths = [64, 512, 300, 256, 256, 128, 1000, 10]
    measured = ringreduce.run(_buckets, 2, widths, limits)[0]
    layers = [
        Layer(
            name=str(n), forward_s=1, backward_s=1,
            parameters=[Parameter(name=f"{n}.weight", numel=a * b), Parameter(name=f"{n}.bias", numel=b)],
        )
        for n, (a, b) in enumerate(pairwise(widths))
    ]  # fmt: skip
    made = Job(samples=2, layers=layers, optimizer=Optimizer())
    name = f"data_parallel:first_bucket_mb={limits[0]}:bucket_mb={limits[1]}"
    assert [bucket.nbytes for bucket in strategy(name).buckets(made)] == measured


@pytest.mark.parametrize("limit", [1.0, 25.0])
def test_buckets_are_those_of_torchs_ddp(limit):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.distributed")
    widths = [64, 512, 300, 256, 2560, 1280, 1000, 10]
    model = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(widths)))
    parameters = list(model.parameters())[::-1]
    expected, _ = torch.distributed._compute_bucket_assignment_by_size(parameters, [MB, int(limit * MB)])
    layers = [
        Layer(
            name=str(n), forward_s=1, backward_s=1,
            parameters=[Parameter(name=f"{n}.weight", numel=a * b), Parameter(name=f"{n}.bias", numel=b)],
        )
        for n, (a, b) in enumerate(pairwise(widths))
    ]  # fmt: skip
    made = Job(samples=2, layers=layers, optimizer=Optimizer())
    found = [bucket.nbytes for bucket in strategy(f"ddp:bucket_mb={limit}").buckets(made)]
    assert found == [sum(parameters[place].nbytes for place in places) for places in expected]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "zero4",
            "there is no strategy 'zero4'; there are ddp, data_parallel, zero1, zero2, fsdp2, 3d, balanced, "
            "bf16, fp16, int8, fp8, sign_majority, top_k, power_sgd, local_sgd, diloco, streaming_diloco, "
            "parameter_server, stale_parameter_server",
        ),
        ("zero2:bucket=3", "strategy 'zero2:bucket=3': bucket: there is no such key"),
        ("ddp:bucket_mb=0", "strategy 'ddp:bucket_mb=0': bucket_mb must be > 0, not 0"),
    ],
)
def test_a_wrong_strategy_is_named(text, message):
    with pytest.raises(ValueError) as error:
        strategy(text)
    assert str(error.value) == message


def test_fsdp2_copies_each_unit_into_and_out_of_what_travels():
    """Two gatherings of 8 MiB, with copies of the whole and of a quarter, and a scattering with one of the whole."""
    found = predict(job(copy_rate=8 * MB / 0.1), cluster(rate=math.inf), strategy("fsdp2"), 4)
    assert found.compute_s == pytest.approx(0.120 + 0.001 + (2 * 1.25 + 1) * 0.1)


@pytest.mark.parametrize(("views", "copies"), [("false", 2), ("true", 1)])
def test_ddp_copies_gradients_into_buckets_and_back(views, copies):
    made = job(copy_rate=8 * MB / 0.1)
    found = predict(made, cluster(rate=8 * MB), strategy(f"ddp:views={views}"), 4)
    assert found.compute_s == pytest.approx(0.124 + copies * 0.1)
    # The copies back follow the averages, so nothing hides them.
    last = [one.operation.name for one in sorted(found.timeline, key=lambda one: one.ended)][-2:]
    assert ("copy back" in last) == (views == "false")


def test_fsdp2_on_cpus_waits_for_each_collective():
    """4 gatherings forwards, and 4 backwards with 4 scatterings, of 2 MiB at 10 MB/s on each of 4 ranks."""
    each = 2 * MB * 3 / 4 / 1e7
    on_cpus = predict(job(), cluster(rate=1e7, kind="cpu"), strategy("fsdp2"), 4)
    assert on_cpus.seconds == pytest.approx(0.121 + 12 * each, rel=0.01)
    assert predict(job(), cluster(rate=1e7), strategy("fsdp2"), 4).seconds < on_cpus.seconds - 0.05


OWN = {"step_s": 0.1, "tensor_s": 0.01, "unit_s": 0.02, "update_s": 0.001}


@pytest.mark.parametrize(
    ("name", "code", "seconds"),
    [
        ("ddp", "ddp", 0.1 + 4 * 0.01),
        ("data_parallel", "data_parallel", 0.1 + 4 * 0.01),
        ("bf16", "data_parallel", 0.1 + 4 * 0.01),
        ("zero1", "zero1", 0.1 + 4 * (0.01 + 0.001)),
        ("zero2", "zero2", 0.1 + 4 * (0.01 + 0.001)),
        ("fsdp2", "fsdp2", 0.1 + 4 * (0.01 + 0.02 + 0.001)),
        ("diloco:every=1", "diloco", 4 * 0.001),
        ("local_sgd:every=1", "local_sgd", 4 * 0.001),
    ],
)
def test_the_code_of_a_strategy_takes_its_time(name, code, seconds):
    plain, more = (
        predict(job(overheads=own), cluster(rate=math.inf), strategy(name), 4)
        for own in ({}, {code: OWN, "other": OWN})
    )
    assert more.compute_s == pytest.approx(plain.compute_s + seconds)


def test_a_fully_sharded_optimizer_has_a_share_of_each_tensor():
    made = job(optimizer=Optimizer(tensor_s=0.01))
    steps = {name: predict(made, cluster(rate=math.inf), strategy(name), 4) for name in ("fsdp2", "zero2")}
    assert steps["fsdp2"].compute_s == pytest.approx(0.120 + 4 * 0.01)
    assert steps["zero2"].compute_s == pytest.approx(0.120 + 4 * 0.01 / 4)


@pytest.mark.parametrize(
    ("name", "trips"), [("ddp", 1), ("data_parallel", 2), ("zero2", 3), ("power_sgd", 1)]
)
def test_ranks_agree_that_a_backward_pass_succeeded(name, trips):
    """A small bucket and the verdict need a trip each over two links. A hook's group has them at the same time."""
    made = job(layers=1, nbytes=4096)
    found = predict(made, cluster(hosts=2, rate=math.inf, latency_us=5e5), strategy(name), 2)
    assert found.seconds == pytest.approx(0.034 + trips, abs=0.05)
