"""DataParallel beside a single process that has all ranks' data: equal, not close."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import ringreduce
from ringreduce import DataParallel
from tests.training.models import TINY, alone, batch, chain, gradients, on_ranks, same, whole_

WORLD = 4


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("sizes", [TINY, {}], ids=["many buckets", "one bucket"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_those_of_one_process(world, sizes, set_to_none):
    expected = []
    for step in range(3):
        model = chain()
        for rank in range(world):
            (model(batch(rank, step)).sum() / world).backward()
        expected.append(gradients(model))

    def rank_main(comm):
        model = DataParallel(chain(), comm, **sizes)
        found = []
        for step in range(3):
            model.zero_grad(set_to_none=set_to_none)
            model(batch(comm.rank, step)).sum().backward()
            found.append(gradients(model))
        return found

    for found in on_ranks(world, rank_main):
        assert all(same(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_processes_train_to_the_same_parameters_as_one_process():
    torch.set_num_threads(1)
    model = chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=1 / 64, momentum=0.5)
    for step in range(3):
        optimizer.zero_grad()
        (sum(model(batch(rank, step)).sum() for rank in range(2)) / 2).backward()
        optimizer.step()

    def rank_main(comm):
        ours = DataParallel(chain(seed=comm.rank), comm, **TINY)
        optimizer = torch.optim.SGD(ours.parameters(), lr=1 / 64, momentum=0.5)
        for step in range(3):
            optimizer.zero_grad()
            ours(batch(comm.rank, step)).sum().backward()
            optimizer.step()
        return [p.detach().numpy() for p in ours.parameters()]

    for found in ringreduce.run(rank_main, 2, timeout=100):
        assert same([torch.from_numpy(p) for p in found], [p.detach() for p in model.parameters()])


def test_all_begin_with_the_parameters_and_buffers_of_rank_0():
    def rank_main(comm):
        module = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1).half()
        )
        module[2].weight.requires_grad_(False)
        whole_([*module.parameters(), *module.buffers()], comm.rank)
        DataParallel(module, comm)
        return module.state_dict()

    first, *others = on_ranks(3, rank_main)
    expected = torch.empty_like(first["0.weight"])
    whole_([expected], 0)
    assert torch.equal(first["0.weight"], expected)
    assert all(same(list(first.values()), list(other.values())) for other in others)


def test_rank_0s_buffers_go_to_all_before_a_training_step_and_on_demand():
    def rank_main(comm):
        model = DataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), comm)
        norm = model.module[1]
        seen = []

        def note():
            seen.append(float(norm.running_mean[0]))

        norm.register_forward_pre_hook(lambda *_: note())
        norm.running_mean = torch.full((4,), 1.0 + comm.rank)  # another tensor than there was
        model(batch(comm.rank)).sum().backward()
        norm.running_mean.fill_(5.0 + comm.rank)
        with model.no_sync():
            model(batch(comm.rank))
        norm.running_mean.fill_(7.0 + comm.rank)
        model.eval()(batch(comm.rank))
        model.sync_buffers()
        note()
        return seen

    assert on_ranks(2, rank_main) == [[1, 5, 7, 7], [1, 6, 8, 7]]


def test_without_broadcast_buffers_each_rank_keeps_its_own():
    def rank_main(comm):
        norm = torch.nn.BatchNorm1d(4)
        model = DataParallel(norm, comm, broadcast_buffers=False)
        norm.running_mean.fill_(1.0 + comm.rank)
        norm.momentum = 0.0
        model(batch(comm.rank)).sum().backward()
        return norm.running_mean.tolist()

    assert on_ranks(2, rank_main) == [[1] * 4, [2] * 4]


def test_gradients_live_in_shared_memory_and_stay_there():
    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        for step in range(3):
            model.zero_grad(set_to_none=step != 2)
            model(batch(comm.rank, step)).sum().backward()
            for p in model.parameters():
                assert ringreduce._engine.is_shared(p.grad.data_ptr(), p.grad.nbytes)
            if step > 0:  # the buckets were made anew after the first one
                addresses.append([p.grad.data_ptr() for p in model.parameters()])

    addresses: list[Any] = []
    on_ranks(1, rank_main)
    assert addresses[0] == addresses[1]


def test_no_sync_adds_up_gradients_of_this_rank_only():
    expected = alone(chain(), steps=3)

    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        with model.no_sync():
            for step in range(2):
                model(batch(comm.rank, step)).sum().backward()
        own = chain()
        for step in range(2):
            own(batch(comm.rank, step)).sum().backward()
        assert same(gradients(model), gradients(own)) and model.timings.buckets == []
        model(batch(comm.rank, 2)).sum().backward()
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(WORLD, rank_main))


def test_buckets_follow_the_order_in_which_rank_0s_gradients_came():
    class Backwards(torch.nn.Module):
        """Uses its layers in another order than it defines them in."""

        def __init__(self, last_first: bool) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(4))
            self.order = [3, 1, 2, 0] if last_first else [0, 1, 2, 3]

        def forward(self, x):
            for number in self.order:
                x = self.layers[number](x)
            return x

    def rank_main(comm):
        model = DataParallel(Backwards(comm.rank == 0), comm, bucket_mb=1e-9, first_bucket_mb=1e-9)

        def sent():
            return [bucket.slots[0].name[8] for bucket in model._reducer.buckets]

        assert sent() == ["3", "2", "1", "0"]
        for _ in range(2):
            model(batch(comm.rank)).sum().backward()
            assert sent() == ["0", "2", "1", "3"]

    on_ranks(2, rank_main)


def test_gradients_of_the_first_step_survive_the_new_buckets():
    expected = alone(chain(), steps=2)

    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        for step in range(2):
            with model.no_sync():
                model(batch(comm.rank, step)).sum().backward()
        model(
            batch(comm.rank, 0)[:0]
        ).sum().backward()  # adds zeros, synchronises, and makes the buckets anew
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(WORLD, rank_main))


def test_timings_tell_when_buckets_were_under_way():
    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        for _ in range(2):
            model(batch(comm.rank)).sum().backward()
        return model.timings, sum(p.nbytes for p in model.parameters())

    for timings, nbytes in on_ranks(2, rank_main):
        assert [bucket.index for bucket in timings.buckets] == list(range(len(timings.buckets)))
        assert len(timings.buckets) > 2 and sum(bucket.nbytes for bucket in timings.buckets) == nbytes
        assert all(bucket.began <= bucket.ended for bucket in timings.buckets)
        assert all(bucket.submitted <= bucket.ended for bucket in timings.buckets)
        assert all(begin <= end for begin, end in timings.waits)
        assert timings.waits[-1][1] >= timings.buckets[-1].ended
        assert 0 < timings.communication < 20 and 0 < timings.exposed < 20
        assert timings.hidden == max(timings.communication - timings.exposed, 0)


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}])
def test_gradients_of_ones_own_are_kept(options):
    """As under torch's DistributedDataParallel by default: no step changes what an earlier one has left."""
    expected = [alone(chain(), steps=1, world=2), alone(chain(), steps=2, world=2)]

    def rank_main(comm):
        model = DataParallel(chain(), comm, gradient_as_bucket_view=False, **options, **TINY)
        kept = []
        for steps in (1, 2, 1):
            model.zero_grad()
            for step in range(steps):
                with nullcontext() if step == steps - 1 else model.no_sync():
                    model(batch(comm.rank, step)).sum().backward()
            kept.append([p.grad for p in model.parameters()])
        return [[gradient.clone() for gradient in gradients] for gradients in kept]

    for found in on_ranks(2, rank_main):
        assert same(found[0], expected[0]) and same(found[1], expected[1]) and same(found[2], expected[0])
