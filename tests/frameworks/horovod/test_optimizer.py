"""DistributedOptimizer trains as one process does with the whole batch; broadcasts; batch normalisation."""

from __future__ import annotations

import itertools
import warnings

import pytest

torch = pytest.importorskip("torch")

import ringreduce.horovod.torch as hvd  # noqa: E402
from tests.frameworks.horovod.ranks import on_ranks, values  # noqa: E402

WIDTH, STEPS = 4, 3
RATE = 1 / 256  # a power of two: float64 keeps every value of these trainings exactly


class Model(torch.nn.Module):
    """Sums of small whole numbers, which are exact; the last layer is used by rank 0 only."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, 8), torch.nn.Linear(8, 2)
        self.sometimes = torch.nn.Linear(2, 2)
        self.double()
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(values(parameter.numel(), number).view(parameter.shape) - 4)

    def forward(self, x, all_layers):
        x = self.second(self.first(x))
        return self.sometimes(x) if all_layers else x


def batch(step, rank):
    return values(WIDTH * 2, 5 * step + rank, torch.float64).view(2, WIDTH) - 3


def loss_of(model, step, rank):
    return model(batch(step, rank), rank == 0).sum()


def alone(ranks, passes=1, average=True):
    """The parameters after training in one process, with the sum or average of all ranks' gradients."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        total = sum(loss_of(model, step * passes + n, rank) for n in range(passes) for rank in range(ranks))
        (total / ranks if average else total).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def trained(options, how):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
    if options.get("groups") == "some":
        options["groups"] = [[model.first.weight, model.second.bias], [model.first.bias]]
    named = None if how == "no names" else model.named_parameters()
    passes = options.get("backward_passes_per_step", 1)
    optimizer = hvd.DistributedOptimizer(optimizer, named, **options)
    assert isinstance(optimizer, torch.optim.SGD)
    for step in range(STEPS):
        optimizer.zero_grad()
        for n in range(passes):
            loss_of(model, step * passes + n, hvd.rank()).backward()
        if how == "synchronize":
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


CASES = {
    "plain": ({}, ""),
    "no names": ({}, "no names"),
    "synchronize": ({}, "synchronize"),
    "sum": ({"op": hvd.Sum}, ""),
    "predivide": ({"gradient_predivide_factor": 2.0}, ""),
    "passes": ({"backward_passes_per_step": 2}, ""),
    "two groups": ({"num_groups": 2}, ""),
    "older groups": ({"groups": 3}, ""),
    "groups": ({"groups": "some"}, ""),
    "fp16": ({"compression": hvd.Compression.fp16}, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_it_trains_as_one_process_does(name):
    options, how = CASES[name]
    expected = alone(2, options.get("backward_passes_per_step", 1), options.get("op") is not hvd.Sum)
    for found in on_ranks(2, trained, dict(options), how):
        for own, one in zip(found, expected, strict=True):
            torch.testing.assert_close(own, one, rtol=1e-2 if name == "fp16" else 0, atol=0)


def misused():
    model = torch.nn.Linear(2, 1)

    def make(**options):
        return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)

    named = list(model.named_parameters())
    for text, options in {
        "predivide": {"op": hvd.Sum, "gradient_predivide_factor": 2.0},
        "at least 1": {"backward_passes_per_step": 0},
        "lacks 1": {"named_parameters": named[:1]},
        "twice": {"named_parameters": [("a", named[0][1]), ("a", named[1][1])]},
        "pairs": {"named_parameters": list(model.parameters())},
        "lists of parameters": {"groups": [1, 2]},
        "parameter twice": {"groups": [[model.bias], [model.bias]]},
        "negative": {"num_groups": -1},
    }.items():
        with pytest.raises(ValueError, match=text):
            make(**options)
    optimizer = make(named_parameters=named)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        model(torch.ones(1, 2)).sum().backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert "skip_synchronize" in str(caught[0].message)
    optimizer.set_backward_passes_per_step(2)
    optimizer.zero_grad()
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return True


def test_misuse_is_named():
    assert on_ranks(2, misused) == [True, True]


SET_OPTIONS = {
    "plain": {},
    "predivide": {"gradient_predivide_factor": 2.0},
    "passes": {"backward_passes_per_step": 2},
    "groups": {"num_groups": 1},
    "fp16": {"compression": hvd.Compression.fp16},
}


def of_a_set(options, how):
    own = hvd.add_process_set([0, 1])
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=own, **options)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(options.get("backward_passes_per_step", 1)):
            model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
        if how == "synchronize":
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return model.weight[0, 0].item() / options.get("backward_passes_per_step", 1)


@pytest.mark.parametrize("how", ["", "synchronize"])
@pytest.mark.parametrize("name", SET_OPTIONS)
def test_a_process_set_trains_and_others_step_with_their_own_gradients(name, how):
    assert on_ranks(3, of_a_set, SET_OPTIONS[name], how, sets="dynamic") == [-1.0, -1.0, -4.0]


def sparse(as_dense):
    table = torch.nn.Embedding(4, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=as_dense
    )
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([hvd.rank(), 3])).sum().backward()
        optimizer.step()
    return table.weight[:, 0].tolist()


@pytest.mark.parametrize("as_dense", [True, False])
def test_sparse_gradients(as_dense):
    assert on_ranks(2, sparse, as_dense) == [[-1.0, -1.0, 0.0, -2.0]] * 2


def sparse_adam(as_dense, zeros_first):
    table = torch.nn.Embedding(5, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    inner = torch.optim.SparseAdam(table.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, table.named_parameters(), sparse_as_dense=as_dense)
    for step in range(3):
        if zeros_first or step:
            optimizer.zero_grad()
        table(torch.tensor([hvd.rank(), 3])).sum().backward()
        optimizer.step()
        assert table.weight.grad.is_sparse and table.weight.grad.sparse_dim() == 1
    return table.weight.tolist()


@pytest.mark.parametrize("zeros_first", [True, False])
@pytest.mark.parametrize("as_dense", [True, False])
def test_sparse_gradients_stay_sparse_for_the_optimizer(as_dense, zeros_first):
    table = torch.nn.Embedding(5, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    alone = torch.optim.SparseAdam(table.parameters(), lr=1.0)
    for _ in range(3):
        alone.zero_grad()
        (table(torch.tensor([0, 3, 1, 3])).sum() / 2).backward()
        alone.step()
    for found in on_ranks(2, sparse_adam, as_dense, zeros_first):
        torch.testing.assert_close(torch.tensor(found), table.weight.detach())


def wrapped():
    frozen, free, had = (torch.nn.Parameter(torch.ones(2), requires_grad=n > 0) for n in range(3))
    had.grad = torch.full((2,), 3.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([frozen, free, had], lr=1.0))
    found = [frozen.grad is None, free.grad.tolist(), had.grad.tolist()]
    (free * (1 + hvd.rank())).sum().backward()
    optimizer.step()
    return [*found, free.tolist(), had.tolist()]


def test_gradients_are_zero_after_wrapping():
    """Programs for Horovod read them before the first backward pass."""
    assert on_ranks(2, wrapped) == [[True, [0.0, 0.0], [3.0, 3.0], [-0.5, -0.5], [-2.0, -2.0]]] * 2


def adaptive():
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)
    for x in (torch.ones(1, 2), torch.eye(2)[hvd.rank() :][:1]):  # the same gradient, then orthogonal ones
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():
        pass
    return model.weight.tolist()


def test_adasum_combines_the_steps():
    assert on_ranks(2, adaptive) == [[[-2.0, -2.0]]] * 2


def broadcast(kind):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    make = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1 + hvd.rank(), momentum=0.9),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=0.1 + hvd.rank()),
    }[kind]
    torch.manual_seed(hvd.rank())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    optimizer = make()
    if hvd.rank() == 1:  # the others have not stepped
        model(torch.randn(4, 2)).square().sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    with pytest.raises(ValueError, match="state_dict or pairs"):
        hvd.broadcast_parameters(list(model.parameters()), root_rank=1)
    state = optimizer.state_dict()
    moments = [value for one in state["state"].values() for value in one.values() if value is not None]
    assert moments
    return [*model.state_dict().values(), *map(torch.as_tensor, moments)], state["param_groups"][0]["lr"]


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_broadcast_of_parameters_and_state(kind):
    found = on_ranks(3, broadcast, kind)
    assert [rate for _, rate in found] == [1.1] * 3
    for tensors in itertools.zip_longest(*[tensors for tensors, _ in found]):
        assert all(torch.equal(tensor, tensors[1]) for tensor in tensors)


def scheduled():
    model = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    before = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model(torch.ones(1, 2) * hvd.rank()).sum().backward()
    optimizer.step()
    assert model.weight.grad.tolist() == [[0.5, 0.5]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before.step()
    after.step()
    return optimizer.param_groups[0]["lr"]


def test_schedulers_of_either_optimizer_work():
    assert on_ranks(2, scheduled) == [0.25, 0.25]


def normalised():
    layer = hvd.SyncBatchNorm(2)
    x = torch.arange(8.0).view(4, 2)[2 * hvd.rank() :][:2].requires_grad_()
    handle = hvd.allreduce_async(torch.ones(1), name="meanwhile")
    out = layer(x)
    (out * torch.tensor([1.0, 2.0])).square().sum().backward()
    hvd.synchronize(handle)
    layer.eval()
    layer(x)
    return out.detach(), x.grad, layer.running_mean


def test_sync_batch_norm():
    found = on_ranks(2, normalised)
    layer, x = torch.nn.BatchNorm1d(2), torch.arange(8.0).view(4, 2).requires_grad_()
    out = layer(x)
    (out * torch.tensor([1.0, 2.0])).square().sum().backward()
    torch.testing.assert_close(torch.cat([one[0] for one in found]), out.detach())
    torch.testing.assert_close(torch.cat([one[1] for one in found]), x.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found[0][2], layer.running_mean)
