"""What each compression method computes, beside the same in NumPy or by hand."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

from ringreduce import compression
from ringreduce.compression import HalfPrecision, Int8Blocks, PowerSGD, SignMajority, TopK
from ringreduce.compression.top_k import largest
from tests.frameworks.torch.groups import on_process_group
from tests.training.buckets import FakeBucket, Ranks, integers, normal


def on_communicators(world, make, gradients):
    return Ranks(world, make, [tuple(gradients[0].shape)]).step(gradients)


def on_a_process_group(world, make, gradients):
    """Where torch's group, of a backend without wire formats, carries what the engine has encoded."""

    def rank_main():
        gradient = gradients[dist.get_rank()]
        bucket = FakeBucket([gradient], [torch.zeros(gradient.shape)])
        return compression.hook(make(dist.group.WORLD), bucket).wait().numpy()

    first, *others = on_process_group(world, rank_main, backend="gloo")
    assert all(np.array_equal(first.view(np.int32), other.view(np.int32)) for other in others)
    return torch.from_numpy(first)


both_groups = pytest.mark.parametrize("averaged", [on_communicators, on_a_process_group])


@both_groups
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("world", [2, 4])
def test_half_precision_is_exact_where_16_bits_hold_the_values(dtype, world, averaged):
    gradients = [integers(rank, 1000) for rank in range(world)]
    found = averaged(world, lambda group: HalfPrecision(dtype, group), gradients)
    assert torch.equal(found, sum(gradients) / world)


@both_groups
def test_half_precision_sends_16_bits(averaged):
    fine = torch.full((100,), 1 + 2**-9 + 2**-12)  # 2^-12 is lost in fp16, 2^-9 in bf16, too
    for dtype, wanted in (("fp16", 1 + 2**-9), ("bf16", 1.0)):
        found = averaged(2, lambda group, dtype=dtype: HalfPrecision(dtype, group), [fine, fine])
        assert torch.equal(found, torch.full((100,), wanted))


@both_groups
def test_half_precision_does_not_overflow_in_sums(averaged):
    large = torch.full((100,), 60000.0)
    assert torch.equal(averaged(4, lambda group: HalfPrecision("fp16", group), [large] * 4), large)


@both_groups
@pytest.mark.parametrize("world", [2, 3])
def test_int8_is_as_close_as_it_says(world, averaged):
    gradients = [normal(rank, 1000) for rank in range(world)]
    found = averaged(world, Int8Blocks, gradients)
    blocks = [torch.nn.functional.pad(g, (0, 24)).view(4, 256) for g in gradients]
    largest_of_blocks = sum(block.abs().amax(1) for block in blocks) / world
    bound = (2 * 1.01 / 254 * largest_of_blocks).repeat_interleave(256)[:1000]  # rounded twice
    error = (found - sum(gradients) / world).abs()
    assert (error <= bound).all()
    assert error.max() > 0.1 * bound.max()  # 8 bits have gone over the wire, not 32


@both_groups
def test_int8_codes(averaged):
    """Steps of 2, as the block's largest value is 254; another block is not touched by them."""
    gradient = torch.zeros(512)
    gradient[:4] = torch.tensor([254.0, -127.0, 1.0, 3.4])
    found = averaged(2, Int8Blocks, [gradient, gradient])
    assert torch.allclose(found[:5], torch.tensor([254.0, -128.0, 0.0, 4.0, 0.0]), rtol=1e-6, atol=0)
    assert not found[5:].any()


# --- signs ---------------------------------------------------------------------------------------------------


def votes_in_numpy(gradients, step, block):
    """The majority's sign times the mean of the ranks' mean magnitudes, block by block."""
    world, count = gradients.shape
    signs = np.where(gradients >= 0, 1, -1)
    tally = signs.sum(0)
    majority = np.where(tally == 0, signs[step % world], np.sign(tally))
    starts = range(0, count, block)
    lengths = [np.abs(gradients[:, start : start + block]).mean(1).mean() for start in starts]
    return (majority * np.repeat(lengths, block)[:count]).astype(np.float32)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_majority_decides_and_ties_go_to_one_rank_after_the_other(world):
    count, block = 8 * 37, 8  # blocks of 8, so that means of whole numbers are exact
    ranks = Ranks(world, lambda comm: SignMajority(comm, error_feedback=False, block=block), [(count,)])
    for step in range(3):
        gradients = torch.stack([integers(10 * step + rank, count) for rank in range(world)])
        found = ranks.step(list(gradients))
        assert np.allclose(found.numpy(), votes_in_numpy(gradients.numpy(), step, block), rtol=1e-6, atol=0)


def sign_feedback_in_numpy(gradients, errors, left, block):
    """One step with error feedback; changes errors [world, n] and left [n]."""
    errors += gradients
    lengths = np.abs(errors).reshape(len(errors), -1, block).mean(2).repeat(block, 1)
    votes = np.where(errors >= 0, lengths, -lengths)
    errors -= votes
    left += votes.mean(0)
    length = np.abs(left).reshape(-1, block).mean(1).repeat(block)
    step = np.where(left >= 0, length, -length)
    left -= step
    return step


def test_signs_with_error_feedback_to_the_bit():
    """Two ranks and blocks of 8: all of three steps are short dyadic numbers, so no sum is rounded."""
    count, block, world = 256, 8, 2
    ranks = Ranks(world, lambda comm: SignMajority(comm, block=block), [(count,)])
    errors, left = np.zeros((world, count)), np.zeros(count)
    given, applied = np.zeros(count), np.zeros(count)
    for step in range(3):
        gradients = torch.stack([integers(10 * step + rank, count, 4) for rank in range(world)])
        wanted = sign_feedback_in_numpy(gradients.numpy(), errors, left, block)
        found = ranks.step(list(gradients)).numpy()
        assert np.array_equal(found, wanted)
        given, applied = given + gradients.numpy().mean(0), applied + found
    assert np.array_equal(applied + errors.mean(0) + left, given)


def test_the_uneven_end_of_a_bucket_has_its_own_mean():
    """13 values in blocks of 8: the last 5 must not be made smaller by what is not there."""
    for feedback in (True, False):
        ranks = Ranks(2, lambda comm, f=feedback: SignMajority(comm, error_feedback=f, block=8), [(13,)])
        gradient = torch.tensor([1.0] * 8 + [-3.0] * 5)
        assert torch.equal(ranks.step([gradient, gradient]), gradient)


@pytest.mark.parametrize("method", [SignMajority, PowerSGD])
def test_the_first_steps_are_not_compressed(method):
    ranks = Ranks(2, lambda comm: method(comm, start_iter=2), [(64, 64)])
    for step in range(3):
        gradients = [integers(2 * step, 4096), integers(2 * step + 1, 4096)]
        assert torch.equal(ranks.step(gradients), sum(gradients) / 2) == (step < 2)


# --- the largest elements --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x",
    [normal(1, 300_000), normal(2, 999), torch.ones(100_000), torch.zeros(100_000), integers(3, 200_000),
     torch.cat([torch.zeros(99_000), normal(4, 1000)])],
    ids=["normal", "few", "equal", "zero", "with ties", "mostly zero"],
)  # fmt: skip
@pytest.mark.parametrize("share", [0.001, 0.01, 0.3, 1.0])
def test_largest(x, share):
    count = max(int(share * x.numel()), 1)
    places = largest(x, count)
    assert len(places.unique()) == count
    assert torch.equal(x[places].abs().sort().values, x.abs().sort().values[-count:])


def dgc_in_numpy(gradient, velocity, unsent, count, momentum, masking):
    """Places and values of one rank's step; changes velocity and unsent."""
    velocity *= momentum
    velocity += gradient
    unsent += velocity
    places = np.argsort(-np.abs(unsent), kind="stable")[:count]
    values = unsent[places].copy()
    unsent[places] = 0
    if masking:
        velocity[places] = 0
    return places, values


@pytest.mark.parametrize(("momentum", "masking"), [(0.0, True), (0.5, True), (0.5, False)])
def test_top_k_to_the_bit(momentum, masking):
    """Distinct magnitudes, so that there is one choice only; halves of whole numbers add up exactly."""
    world, count = 2, 64
    ranks = Ranks(
        world,
        lambda comm: TopK(comm, fraction=0.1, momentum=momentum, factor_masking=masking),
        [(8, 4), (32,)],
    )
    velocity, unsent = np.zeros((world, count)), np.zeros((world, count))
    draw = np.random.default_rng(5)
    for _ in range(4):
        gradients = np.stack([draw.permutation(4096)[:count] - 2048.0 for _ in range(world)])
        wanted = np.zeros(count)
        for rank in range(world):
            places, values = dgc_in_numpy(gradients[rank], velocity[rank], unsent[rank], 7, momentum, masking)
            wanted[places] += values / world
        found = ranks.step([torch.from_numpy(each).float() for each in gradients])
        assert np.array_equal(found.numpy(), wanted)


def test_top_k_clips_each_ranks_gradient():
    ranks = Ranks(2, lambda comm: TopK(comm, fraction=1.0, clip=5.0), [(2,)])
    small, large = torch.tensor([0.0, 1.0]), torch.tensor([24.0, 32.0])
    assert ranks.step([small, large]).tolist() == [1.5, 2.5]  # of (0, 1) and (3, 4)


def test_top_k_warms_up():
    ranks = Ranks(1, lambda comm: TopK(comm, fraction=0.01, warmup_steps=2), [(1000,)])
    sent = [ranks.step([normal(step, 1000)]).count_nonzero().item() for step in range(4)]
    assert sent == [250, 50, 10, 10]


# --- low rank --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 3])
def test_power_sgd_is_exact_on_matrices_of_low_rank(world):
    """As long as the average's rank is not above matrix_rank, and on vectors always."""
    shapes = [(48, 20), (20,), (24, 4, 6)]
    low = [normal(7, 48)[:, None] * normal(8, 20), normal(9, 24)[:, None] * normal(10, 24)]
    ranks = Ranks(world, lambda comm: PowerSGD(comm, matrix_rank=2), shapes)
    for step in range(3):
        gradients = []
        for rank in range(world):
            mixed = [(1 + rank + step) * low[0], integers(rank, 20), (rank - 3) * low[1]]
            gradients.append(torch.cat([part.reshape(-1) for part in mixed]))
        found, wanted = ranks.step(gradients), sum(gradients) / world
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)
        assert torch.equal(found[960:980], wanted[960:980])


def test_power_sgd_follows_a_matrix_that_stays():
    """Warm start is power iteration: a constant matrix's error goes down to that of the best of rank r."""
    matrix = torch.diag(torch.tensor([16.0, 8.0, 1.0, 0.5] + [0.0] * 28))
    by_warmth = []
    for warm in (True, False):
        ranks = Ranks(
            1,
            lambda comm, w=warm: PowerSGD(comm, matrix_rank=2, error_feedback=False, warm_start=w),
            [(32, 32)],
        )
        for _ in range(8):
            found = ranks.step([matrix.reshape(-1)]).view(32, 32)
        by_warmth.append((found - matrix).norm().item())
    best = (1 + 0.25) ** 0.5
    assert by_warmth[0] == pytest.approx(best, rel=1e-3)
    assert by_warmth[1] > 1.001 * best


def test_power_sgd_recovers_from_a_step_without_gradients():
    ranks = Ranks(2, lambda comm: PowerSGD(comm, matrix_rank=2), [(16, 16)])
    low = (normal(1, 16)[:, None] * normal(2, 16)).reshape(-1)
    assert not ranks.step([torch.zeros(256)] * 2).any()
    applied = sum(ranks.step([low, low]) for _ in range(3))
    assert torch.allclose(applied, 3 * low, atol=1e-4)


def test_power_sgd_leaves_alone_what_would_not_get_smaller():
    ranks = Ranks(2, lambda comm: PowerSGD(comm, matrix_rank=4, min_compression_rate=2), [(16, 16), (15, 16)])
    gradients = [integers(rank, 496) for rank in range(2)]
    found = ranks.step(gradients)  # 256 = 2 * (16 + 16) * 4, not above
    assert torch.equal(found, sum(gradients) / 2)
    assert ranks.states[0].bytes_sent == ranks.states[0].bytes_uncompressed == 496 * 4


def test_power_sgd_leaves_a_single_number_alone():
    ranks = Ranks(2, lambda comm: PowerSGD(comm, matrix_rank=1), [(16, 16), ()])
    gradients = [integers(rank, 257) for rank in range(2)]
    assert ranks.step(gradients)[-1] == sum(gradients)[-1] / 2
