"""SyncBatchNorm on parts of a batch beside torch's batch normalisation of the whole of it in one process."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ringreduce
from tests.conftest import on_processes, on_threads

FEATURES = 3
SHAPES = {
    "1d": (FEATURES,),
    "1d with length": (FEATURES, 5),
    "2d": (FEATURES, 4, 2),
    "3d": (FEATURES, 2, 3, 2),
}
LAYERS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
EVEN, UNEVEN, ONE_EMPTY = (4, 4, 4), (1, 6, 3), (5, 0, 2)
STEPS = 3
# The two add the same numbers in another order.
CLOSE = dict(rtol=1e-12, atol=1e-12)


def steps(layer, batches):
    """Outputs, input gradients, parameter gradients of training steps, and what the layer has kept."""
    outputs, input_gradients = [], []
    for x, upstream in batches:
        x = x.clone().requires_grad_()
        y = layer(x)
        y.backward(upstream)
        outputs.append(y.detach())
        input_gradients.append(x.grad)
    gradients = [parameter.grad for parameter in layer.parameters()]
    return outputs, input_gradients, gradients, layer.state_dict()


def make_batches(shape, sizes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    whole = (sum(sizes), *shape)
    # A mean far from zero, other on every rank.
    offset = torch.arange(sum(sizes)).view(-1, *[1] * len(shape))
    return [
        (
            (torch.randn(whole, generator=generator, dtype=torch.float64) * 2 + 50 + offset).to(dtype),
            torch.randn(whole, generator=generator, dtype=torch.float64).to(dtype),
        )
        for _ in range(STEPS)
    ]


def make_layer(shape, dtype=torch.float64, **options):
    layer = LAYERS[len(shape) + 1](FEATURES, dtype=dtype, **options)
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([0.5, -2.0, 1.5]))
            layer.bias.copy_(torch.tensor([0.0, 1.0, -1.0]))
    return layer


def steps_of_rank(comm, layer, batches, sizes):
    own = ringreduce.convert_sync_batchnorm(copy.deepcopy(layer), comm)
    assert type(own) is ringreduce.SyncBatchNorm
    return steps(own, [(x.split(sizes)[comm.rank], up.split(sizes)[comm.rank]) for x, up in batches])


def check(on_ranks, shape, sizes, close=CLOSE, dtype=torch.float64, **options):
    layer, batches = make_layer(shape, dtype, **options), make_batches(shape, sizes, dtype)
    found = on_ranks(len(sizes), steps_of_rank, layer, batches, sizes)
    outputs, input_gradients, gradients, state = steps(layer, batches)
    for index, (whole, whole_gradient) in enumerate(zip(outputs, input_gradients, strict=True)):
        torch.testing.assert_close(torch.cat([rank[0][index] for rank in found]), whole, **close)
        torch.testing.assert_close(torch.cat([rank[1][index] for rank in found]), whole_gradient, **close)
    for index, gradient in enumerate(gradients):
        torch.testing.assert_close(sum(rank[2][index] for rank in found), gradient, **close)
    for _, _, _, own in found:
        assert own.keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(own[name], value, **close)


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN, ONE_EMPTY], ids=["even", "uneven", "one empty"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_like_the_whole_batch(shape, sizes):
    check(on_threads, shape, sizes)


@pytest.mark.parametrize(
    "options",
    [dict(affine=False), dict(momentum=None), dict(track_running_stats=False), dict(eps=0.1, momentum=0.5)],
    ids=str,
)
def test_options(options):
    check(on_threads, SHAPES["2d"], UNEVEN, **options)


def test_between_processes():
    torch.set_num_threads(1)  # a forked rank may not start the parent's parallel regions again
    check(on_processes, SHAPES["2d"], (4, 2))


def test_float32():
    check(on_threads, SHAPES["2d"], UNEVEN, close=dict(rtol=1e-4, atol=1e-4), dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_of_sixteen_bits(dtype):
    check(on_threads, SHAPES["2d"], UNEVEN, close=dict(rtol=2e-2, atol=0.1), dtype=dtype)


def test_a_mean_far_larger_than_the_deviation():
    """A sum of squares less a square of sums would leave nothing of the variance."""

    def statistics(comm):
        x = torch.tensor([0.0, 1.0, 2.0, 3.0])[2 * comm.rank :][:2].view(2, 1) + 4096.0
        layer = ringreduce.SyncBatchNorm(1, momentum=1.0, comm=comm)
        layer(x)
        return layer.running_mean.item(), layer.running_var.item()

    assert on_threads(2, statistics) == [(4097.5, pytest.approx(5 / 3))] * 2


def low_precision(comm):
    layer = ringreduce.SyncBatchNorm(FEATURES, comm=comm)
    x = make_batches(SHAPES["2d"], (8,), torch.bfloat16)[0][0].requires_grad_()
    y = layer(x)
    y.sum().backward()
    return y.dtype, x.grad.dtype, layer.weight.grad.dtype, layer.running_var.dtype


def test_sixteen_bits_in_and_out():
    low = torch.bfloat16
    assert on_threads(2, low_precision) == [(low, low, torch.float32, torch.float32)] * 2


def evaluated(comm):
    layer = ringreduce.convert_sync_batchnorm(make_layer((FEATURES,)).eval(), comm)
    layer.running_mean.fill_(2)
    return layer(torch.ones(4, FEATURES, dtype=torch.float64)) if comm.rank == 1 else None


def test_evaluation_needs_no_other_rank():
    expected = make_layer((FEATURES,)).eval()
    expected.running_mean.fill_(2)
    _, found = on_threads(2, evaluated)
    torch.testing.assert_close(found, expected(torch.ones(4, FEATURES, dtype=torch.float64)))


def converted(comm):
    shared = nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(4, 4), shared, nn.Sequential(shared, nn.BatchNorm1d(4)), nn.LayerNorm(4))
    parameters, state = list(model.parameters()), model.state_dict()
    result = ringreduce.SyncBatchNorm.convert_sync_batchnorm(model, comm)  # as with torch's class
    assert result is model
    assert [type(layer).__name__ for layer in model.modules()] == [
        "Sequential", "Linear", "SyncBatchNorm", "Sequential", "SyncBatchNorm", "LayerNorm",
    ]  # fmt: skip
    assert model[1] is model[2][0]
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert state.keys() == model.state_dict().keys()
    twin = copy.deepcopy(model)
    assert twin[1].comm is model[1].comm and twin[1].weight is not model[1].weight
    return twin(torch.randn(2, 4)).shape


def test_a_whole_model_is_converted():
    assert on_threads(2, converted) == [(2, 4)] * 2


def refused(comm):
    layer = ringreduce.SyncBatchNorm(FEATURES, comm=comm)
    with pytest.raises(ValueError, match=r"input must be \[batch, 3, ...\], not \[2, 4\]"):
        layer(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="1 values per feature"):
        layer(torch.zeros(1 if comm.rank == 0 else 0, FEATURES))
    with pytest.raises(ValueError, match="layer '0' is still lazy"):
        ringreduce.convert_sync_batchnorm(nn.Sequential(nn.LazyBatchNorm1d()), comm)


def test_bad_input_is_refused():
    on_threads(2, refused)
