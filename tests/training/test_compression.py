"""What all compression methods have in common: same bits, errors that come back, counts, saving, failing."""

from __future__ import annotations

import importlib.util
import math

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import ringreduce
from ringreduce import compression
from ringreduce.compression import HalfPrecision, Int8Blocks, PowerSGD, SignMajority, TopK
from tests.conftest import slowly
from tests.training.buckets import METHODS, SHAPES, FakeBucket, Ranks, integers, normal

COUNT = 1200 + 30 + 1024 + 1
MOVED = [[3, 2, 1], [0]]  # other buckets than one with all parameters
WITH_ERRORS = ["sign", "top-k", "powersgd"]
every_method = pytest.mark.parametrize("method", METHODS)


@every_method
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_all_ranks_get_the_same_bits(method, world):
    ranks = Ranks(world, METHODS[method], SHAPES)
    for step in range(4):
        average = ranks.step([normal(10 * step + rank, COUNT) for rank in range(world)])  # looks at them
        assert average.isfinite().all() and average.any()


@pytest.mark.parametrize("world", [*slowly(1, 2), 3])
@pytest.mark.parametrize("method", [WITH_ERRORS[0], *slowly(*WITH_ERRORS[1:])])
def test_all_of_the_gradient_arrives_in_time(method, world):
    """What was applied, and what the ranks still hold, is the sum of what they put in."""
    ranks = Ranks(world, METHODS[method], SHAPES)
    given, applied = torch.zeros(COUNT, dtype=torch.float64), torch.zeros(COUNT, dtype=torch.float64)
    for step in range(30):
        gradients = [normal(100 * step + rank, COUNT) for rank in range(world)]
        given += sum(gradient.double() for gradient in gradients) / world
        applied += ranks.step(gradients, None if step < 10 else MOVED).double()
    scale = given.abs().mean()
    assert (given - applied).abs().mean() > 0.05 * scale  # something is held back
    silence = [torch.zeros(COUNT)] * world
    for _ in range(400):
        applied += ranks.step(silence, MOVED).double()
    assert (given - applied).abs().mean() < 0.02 * scale


@pytest.mark.parametrize("method", WITH_ERRORS)
def test_disagreement_does_not_add_up(method):
    """Gradients that cancel out for ever must not leave ever larger errors."""
    ranks = Ranks(2, METHODS[method], [(32, 32)])
    gradient = integers(1, 1024)
    sizes = []
    for _ in range(300):
        sizes.append(ranks.step([gradient, -gradient]).abs().max().item())
    assert max(sizes[150:]) <= 1.1 * max(sizes[:150]) + 1e-3


@every_method
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_gradient_shows_everywhere_and_is_forgotten(method, bad):
    """As a step that a loss scaler skips: on all ranks alike, and the next one is sound."""
    ranks = Ranks(2, METHODS[method], SHAPES)
    for step in range(4):
        gradients = [normal(10 * step + rank, COUNT) for rank in range(2)]
        if step == 2:
            gradients[1][77] = bad
        average = ranks.step(gradients, MOVED)
        assert average.isfinite().all() == (step != 2)


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_go_by_float32(method, dtype):
    """Whole numbers up to 8 are the same in all of them; results are rounded to the gradient's type."""
    states = Ranks(1, METHODS[method], SHAPES), Ranks(1, METHODS[method], SHAPES)
    parameters = [torch.zeros(shape) for shape in SHAPES]
    for step in range(2):
        wide = states[0].step([integers(step, COUNT)])
        parts = integers(step, COUNT).split([parameter.numel() for parameter in parameters])
        narrow = FakeBucket([part.to(dtype) for part in parts], parameters)
        found = compression.hook(states[1].states[0], narrow).wait()
        assert found.dtype == dtype and found.data_ptr() == narrow.buffer().data_ptr()
        assert method == "powersgd" or torch.equal(found, wide.to(dtype))


# Of a bucket of 2,048 float32, [64, 32], per step and rank.
BYTES = {
    "fp16": {2: 4096, 4: 6144},  # 2 (N-1)/N of 2 bytes each
    "bf16": {2: 4096, 4: 6144},
    "int8": {2: 2080, 4: 3120},  # of 1 byte each and 8 scales of 4
    # to each of N-1 ranks an N-th of 2,048 bits and 32 lengths, and from each owner the same to all: 384 bytes
    "sign": {2: 2 * 192, 4: 2 * 288},
    "vote": {2: 2 * 192, 4: 2 * 288},
    "top-k": {2: 103 * 8, 4: 3 * 103 * 8},  # 5 per cent of 2,048, rounded up, N-1 times
    "powersgd": {2: 768, 4: 1152},  # 2 (N-1)/N of (64 + 32) * 2 floats
}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("method", BYTES)
def test_bytes_on_the_wire(method, world):
    ranks = Ranks(world, METHODS[method], [(64, 32)])
    sent = []
    for step in range(2):
        before = ranks.states[0].bytes_sent
        ranks.step([normal(step + rank, 2048) for rank in range(world)])
        sent.append(ranks.states[0].bytes_sent - before)
    plain = 8192 * 2 * (world - 1) // world
    first = plain if method == "powersgd" else BYTES[method][world]  # it starts with the second step
    assert sent == [first, BYTES[method][world]]
    assert {state.bytes_sent for state in ranks.states} == {sum(sent)}
    assert {state.bytes_uncompressed for state in ranks.states} == {2 * plain}


@every_method
def test_saved_states_go_on_as_if_nothing_had_been(method):
    """The same bits as without an end in between."""
    gradients = [[normal(10 * step + rank, COUNT) for rank in range(2)] for step in range(6)]
    through = Ranks(2, METHODS[method], SHAPES)
    expected = [through.step(each, MOVED) for each in gradients]
    before = Ranks(2, METHODS[method], SHAPES)
    for each in gradients[:3]:
        before.step(each, MOVED)
    after = Ranks(2, METHODS[method], SHAPES)
    for old, new in zip(before.states, after.states, strict=True):
        new.load_state_dict(old.state_dict())
    for each, wanted in zip(gradients[3:], expected[3:], strict=True):
        assert torch.equal(after.step(each, MOVED), wanted)


@pytest.mark.parametrize("method", WITH_ERRORS)
def test_what_was_saved_fits_into_other_buckets(method):
    """A new process begins with the wrapper's first buckets, not with those that were there when it was saved."""
    before, after = Ranks(2, METHODS[method], SHAPES), Ranks(2, METHODS[method], SHAPES)
    given, applied = torch.zeros(COUNT), torch.zeros(COUNT)
    for step in range(5):
        gradients = [normal(10 * step + rank, COUNT) for rank in range(2)]
        given += sum(gradients) / 2
        applied += before.step(gradients, MOVED)
    for old, new in zip(before.states, after.states, strict=True):
        saved = old.state_dict()
        saved["memory"] = {
            name: {_renumbered(key): value for key, value in kept.items()}
            for name, kept in saved["memory"].items()
        }
        new.load_state_dict(saved)
    for _ in range(300):
        applied += after.step([torch.zeros(COUNT)] * 2)
    assert (given - applied).abs().mean() < 0.02 * given.abs().mean()


def _renumbered(key):
    """Parameters have numbers by the order in which they are seen: 3, 2, 1, 0 in MOVED's buckets."""
    return tuple(3 - number for number in key) if isinstance(key, tuple) else 3 - key


def test_saved_states_that_do_not_fit_are_refused():
    ranks, others = Ranks(2, METHODS["sign"], SHAPES), Ranks(2, METHODS["top-k"], SHAPES)
    ranks.step([normal(rank, COUNT) for rank in range(2)])
    saved = ranks.states[0].state_dict()
    with pytest.raises(ValueError, match="saved is of method SignMajority, this state of method TopK"):
        others.states[0].load_state_dict(saved)
    fresh = Ranks(2, METHODS["sign"], [(7,)])
    with pytest.raises(ValueError, match="saved is of rank 0, this state of rank 1"):
        fresh.states[1].load_state_dict(saved)
    with pytest.raises(
        ValueError, match=r"saved has the memory \['errors'\], this state \['errors', 'left'\]"
    ):
        fresh.states[0].load_state_dict({**saved, "memory": {"errors": {}}})
    with pytest.raises(ValueError, match="before the first step"):
        ranks.states[0].load_state_dict(saved)
    for state, old in zip(fresh.states, ranks.states, strict=True):
        state.load_state_dict(old.state_dict())
    with pytest.raises(ValueError, match="parameter 0 has 7 elements, and 1200 in what was loaded"):
        fresh.step([torch.ones(7)] * 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda comm: HalfPrecision("fp8", comm), "dtype must be 'fp16' or 'bf16', not 'fp8'"),
        (lambda comm: SignMajority(comm, block=12), "block must be a positive multiple of 8, not 12"),
        (lambda comm: SignMajority(comm, start_iter=-1), "start_iter must not be negative, not -1"),
        (lambda comm: TopK(comm, fraction=0), "fraction must be above 0 and at most 1, not 0"),
        (lambda comm: TopK(comm, fraction=1.5), "fraction must be above 0 and at most 1, not 1.5"),
        (lambda comm: TopK(comm, momentum=1), "momentum must be at least 0 and below 1, not 1"),
        (lambda comm: TopK(comm, clip=-1.0), "clip must be positive, not -1.0"),
        (lambda comm: TopK(comm, warmup_steps=-1), "warmup_steps must not be negative, not -1"),
        (lambda comm: PowerSGD(comm, matrix_rank=0), "matrix_rank must be at least 1, not 0"),
        (lambda comm: PowerSGD(comm, start_iter=-1), "start_iter must not be negative, not -1"),
        (lambda comm: PowerSGD(comm, min_compression_rate=0.5), "min_compression_rate must be at least 1"),
        (lambda comm: PowerSGD(comm, seed=-1), "seed must not be negative, not -1"),
        (lambda comm: Int8Blocks(comm, timeout=0), "timeout must be positive, not 0"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make(ringreduce.local_group(1)[0])


def test_settings_can_be_read():
    state = TopK(ringreduce.local_group(1)[0], fraction=0.05, clip=2.0)
    assert (state.fraction, state.clip, state.momentum) == (0.05, 2.0, 0.0)
    assert repr(state).startswith("TopK(") and "fraction=0.05" in repr(state)


def test_a_group_must_be_one():
    with pytest.raises(TypeError, match=r"group must be a ringreduce\.Communicator, a ProcessGroup or None"):
        Int8Blocks("gloo")


def test_gradients_must_be_real_and_on_a_device_that_is_served():
    state = Int8Blocks(ringreduce.local_group(1)[0])
    for wrong in (torch.zeros(4, dtype=torch.complex64), torch.zeros(4, device="meta")):
        with pytest.raises(ValueError, match="gradients must be real and on a CPU or CUDA GPU, not torch"):
            compression.hook(state, FakeBucket([wrong], [wrong]))


def test_a_bucket_without_gaps_is_asked_for():
    state = Int8Blocks(ringreduce.local_group(1)[0])
    bucket = FakeBucket([torch.zeros(4)], [torch.zeros(4)])
    bucket._gradients = []
    with pytest.raises(ValueError, match="must hold its gradients and nothing else"):
        compression.hook(state, bucket)
