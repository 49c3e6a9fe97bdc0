"""Sparse gradients of embeddings under DataParallel: the rows of all ranks, averaged, bit for bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import ringreduce  # noqa: E402
from ringreduce import DataParallel, compression, elastic, low_communication  # noqa: E402
from tests.conftest import on_processes, on_threads  # noqa: E402
from tests.training.models import TINY, whole_  # noqa: E402

ROWS = 11
TABLES = slice(1, 3)  # of a Words' parameters


class Words(nn.Module):
    """Whole numbers, so that every order of adding gradients gives the same."""

    def __init__(self, sparse=True):
        super().__init__()
        self.table = nn.Embedding(ROWS, 3, sparse=sparse)
        self.bag = nn.EmbeddingBag(ROWS, 3, mode="sum", sparse=sparse)
        self.rest = nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.ones(4))
        whole_(self.parameters(), 0)

    def forward(self, words, bag=True):
        """words: int64 [samples, 2]"""
        found = self.table(words).sum(1)
        return (self.rest(found + self.bag(words) if bag else found) * self.scale).sum()


def words(step, rank, samples=None):
    """More on some ranks than on others, with duplicates, and none on rank 1 in step 1."""
    count = (0 if (step, rank) == (1, 1) else 1 + (step + 2 * rank) % 4) if samples is None else samples
    generator = torch.Generator().manual_seed(50 * step + rank)
    return torch.randint(0, ROWS, (count, 2), generator=generator) // 2


def dense(module):
    return [None if p.grad is None else p.grad.to_dense().clone() for p in module.parameters()]


def expected(size, steps, lr=0.25, batches=words):
    """The gradients of each step in one process, with dense tables, and the parameters at the end."""
    model, found = Words(sparse=False), []
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for rank in range(size):
            model.zero_grad()
            model(batches(step, rank)).backward()
            for own, p in zip(sums, model.parameters(), strict=True):
                own += p.grad
        for own, p in zip(sums, model.parameters(), strict=True):
            p.grad = own.mul_(1 / size)
        found.append(dense(model))
        optimizer.step()
    return found, [p.detach().clone() for p in model.parameters()]


def trained(comm, options, steps, to_none):
    model = DataParallel(Words(), comm, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    found = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=to_none)
        model(words(step, comm.rank)).backward()
        found.append(dense(model))
        for weight in (model.module.table.weight, model.module.bag.weight):
            assert weight.grad.is_sparse and weight.grad.is_coalesced() and weight.grad.sparse_dim() == 1
        optimizer.step()
    return found, [p.detach().clone() for p in model.parameters()]


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, list):
            assert_same(one, other)
        else:
            assert torch.equal(one, other), (one, other)


OPTIONS = {
    "plain": {},
    "small buckets": TINY,
    "copies": {"gradient_as_bucket_view": False},
    "unused": {"find_unused_parameters": True, **TINY},
    "static": {"static_graph": True, **TINY},
}


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_they_are_those_of_one_process(name, to_none):
    wanted = expected(2, 4)
    for found in on_threads(2, trained, OPTIONS[name], 4, to_none):
        assert_same(found, wanted)


@pytest.mark.parametrize("world", [1, 3])
def test_other_numbers_of_processes(world):
    gradients, _ = expected(world, 1)
    for found, _ in on_processes(world, trained, {}, 1, True):
        assert_same(found, gradients)


def accumulated(comm):
    model = DataParallel(Words(), comm)
    for step in range(2):
        with model.no_sync():
            model(words(step, comm.rank)).backward()
    model(words(2, comm.rank)).backward()
    return dense(model)


def test_gradients_of_several_passes_add_up():
    (wanted,), _ = expected(2, 1, batches=lambda _, rank: torch.cat([words(step, rank) for step in range(3)]))
    for found in on_threads(2, accumulated):
        assert_same(found[TABLES], wanted[TABLES])


@pytest.mark.parametrize("method", [None, compression.HalfPrecision, compression.Int8Blocks])
def test_compressed_buckets_leave_rows_as_they_are(method):
    def rank_main(comm):
        model = DataParallel(Words(), comm, wire="int8" if method is None else None)
        if method is not None:
            state = method(group=comm)
            model.register_comm_hook(state, compression.hook)
        model(words(0, comm.rank)).backward()
        if method is not None:
            state.close()
        return dense(model)

    (wanted,), _ = expected(2, 1)
    for found in on_threads(2, rank_main):
        assert_same(found[TABLES], wanted[TABLES])
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0.05, atol=0.5)


@pytest.mark.parametrize("over_all", [True, False])
def test_ranks_without_data_give_no_rows(over_all):
    def rank_main(comm):
        model = DataParallel(Words(), comm)
        found = []
        with model.join(divide_by_initial_world_size=over_all):
            for step in range(1 + comm.rank):
                model.zero_grad()
                model(words(step, comm.rank, 2)).backward()
                found.append(dense(model))
        return found

    first, second = on_threads(2, rank_main)
    alone = Words(sparse=False)
    alone(words(1, 1, 2)).backward()
    assert_same(first[0], second[0])
    assert_same(second[1], [p.grad * (0.5 if over_all else 1.0) for p in alone.parameters()])


def test_a_table_that_some_ranks_or_none_have_used():
    def rank_main(comm):
        model = DataParallel(Words(), comm, find_unused_parameters=True)
        found = []
        for users in ([1], []):
            model.zero_grad()
            model(words(0, comm.rank, 2), bag=comm.rank in users).backward()
            found.append(model.module.bag.weight.grad)
        return found

    (own, none), (theirs, also_none) = on_threads(2, rank_main)
    assert none is None and also_none is None
    assert torch.equal(own.to_dense(), theirs.to_dense()) and own.is_sparse
    alone = Words(sparse=False)
    alone(words(0, 1, 2)).backward()
    assert torch.equal(own.to_dense(), alone.bag.weight.grad / 2)


def test_a_missing_gradient_is_named_and_training_goes_on():
    def rank_main(comm):
        model = DataParallel(Words(), comm)
        with pytest.raises(ringreduce.Error, match=r"rank 1: .*no gradient for 'bag.weight'"):
            model(words(0, comm.rank, 2), bag=comm.rank == 0).backward()
        model.zero_grad()
        model(words(0, comm.rank)).backward()
        return dense(model)

    (wanted,), _ = expected(2, 1)
    for found in on_threads(2, rank_main):
        assert_same(found, wanted)


def test_a_weight_that_is_also_used_densely():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(ROWS, 3, sparse=True)
            whole_(self.parameters(), 1)

        def forward(self, words, both):
            found = self.table(words).sum(1)
            return (found @ self.table.weight.t()).sum() if both else found.sum()

    def rank_main(comm):
        model = DataParallel(Tied(), comm)
        model(words(0, comm.rank, 2), comm.rank == 1).backward()
        return model.module.table.weight.grad

    model = Tied()
    (model(words(0, 0, 2), False) / 2 + model(words(0, 1, 2), True) / 2).backward()
    for found in on_threads(2, rank_main):
        assert not found.is_sparse  # on both ranks, so that their optimizers make the same step
        assert torch.equal(found, model.table.weight.grad.to_dense())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rows_of_narrow_floats_are_added_in_float32(dtype):
    values = torch.randn(3, 1, 4, generator=torch.Generator().manual_seed(0)).to(dtype)

    def rank_main(comm):
        model = DataParallel(nn.Embedding(2, 4, sparse=True, dtype=dtype), comm)
        (model(torch.tensor([1])) * values[comm.rank]).sum().backward()
        return model.module.weight.grad.to_dense()[1]

    wide = values.to(torch.promote_types(dtype, torch.float32))
    wanted = ((wide[0] + wide[1] + wide[2]) * (1 / 3)).to(dtype)[0]
    for found in on_threads(3, rank_main):
        assert torch.equal(found, wanted)


def stepped(comm):
    table = nn.Embedding(ROWS, 3, sparse=True)
    whole_(table.parameters(), 0)
    model = DataParallel(table, comm)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(words(step, comm.rank, 2)).sum().backward()
        optimizer.step()
    return table.weight.detach()


def test_sparse_adam():
    table = nn.Embedding(ROWS, 3, sparse=True)
    whole_(table.parameters(), 0)
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        (table(torch.cat([words(step, 0, 2), words(step, 1, 2)])).sum() / 2).backward()
        optimizer.step()
    for found in on_processes(2, stepped):
        assert torch.equal(found, table.weight)


def test_only_rows_travel():
    def rank_main(comm):
        model = DataParallel(nn.Embedding(100_000, 16, sparse=True), comm)
        model(torch.tensor([comm.rank, 7])).sum().backward()
        (bucket,) = model.timings.buckets
        return bucket.nbytes, model.module.weight.grad._nnz()

    assert on_threads(2, rank_main) == [(2 * 16 * 4, 3)] * 2


def test_what_is_refused_when_a_model_is_wrapped():
    def rank_main(comm):
        with pytest.raises(ringreduce.Error, match=r"differ.*table.weight': float32\[11, 3\], sparse=True"):
            DataParallel(Words(sparse=comm.rank == 0), comm)
        with pytest.raises(
            ValueError, match=r"logical_shards cannot be .* sparse=True, which bag.weight has"
        ):
            DataParallel(Words(), comm, logical_shards=2)

    on_threads(2, rank_main)


def test_elastic_training():
    def rank_main(comm):
        model = DataParallel(Words(), comm)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        state = elastic.State(comm, model=model, optimizer=optimizer)
        for step in elastic.steps(state, 4):
            with step:
                optimizer.zero_grad()
                model(words(step.number, step.rank)).backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    _, wanted = expected(2, 4)
    for found in on_threads(2, rank_main):
        assert_same(found, wanted)


def test_low_communication_takes_any_gradients():
    """Ranks exchange parameters, which are dense."""

    def rank_main(comm):
        table = nn.Embedding(ROWS, 3, sparse=True)
        whole_(table.parameters(), 0)
        inner = torch.optim.SparseAdam(list(table.parameters()), lr=0.5)
        outer = low_communication.LocalSGD(table.parameters(), comm, every=2)
        for step in range(2):
            inner.zero_grad()
            table(words(step, comm.rank, 2)).sum().backward()
            inner.step()
            own = table.weight.detach().clone()
            outer.step()
        return own, table.weight.detach().clone()

    (one, average), (other, same) = on_threads(2, rank_main)
    assert torch.equal(average, same) and torch.equal(average, (one + other) / 2)
