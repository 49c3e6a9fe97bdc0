"""DataParallel beside a single process that has all ranks' data: equal, not close."""

from __future__ import annotations

import copy
import gc
import importlib.util
import io
import pickle
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import ringreduce
from ringreduce import DataParallel
from tests.training.models import TINY, chain, gradients, on_ranks, same, whole, whole_

WORLD = 4


def batch(rank: int, step: int = 0, dtype: Any = torch.float32) -> Any:
    return whole(8, 4, seed=100 * step + rank).to(dtype)


def alone(model: Any, steps: int = 1, world: int = WORLD, seed: int = 0, dtype: Any = torch.float32) -> Any:
    """The average of the ranks' gradients, by one process."""
    for step in range(steps):
        losses = [model(batch(rank, step, dtype)).sum() for rank in range(world)]
        (sum(losses) / world).backward()
    return gradients(model)


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

    for found in ringreduce.run(rank_main, 2, timeout=20):
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
            return [bucket.slots[0].name[7] for bucket in model._reducer.buckets]

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


# --- kinds of models, outputs and dtypes ---------------------------------------------------------------------------


@dataclass
class Answer:
    logits: Any
    more: Any


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "pack, unpack",
    [
        (lambda y: {"a": [y], "b": 1}, lambda o: o["a"][0]),
        (lambda y: Answer(y, None), lambda o: o.logits),
        (lambda y: Pair((y,), "text"), lambda o: o.first[0]),
        (lambda y: type("Own", (), {"y": y}), lambda o: o.y),
    ],
    ids=["dict", "dataclass", "named tuple", "unknown"],
)
@pytest.mark.parametrize("unused", [False, True])
def test_outputs_of_any_kind(pack, unpack, unused):
    expected = alone(chain(), world=2)

    class Packing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.chain = chain()

        def forward(self, *, x):
            return pack(self.chain(x))

    def rank_main(comm):
        model = DataParallel(Packing(), comm, find_unused_parameters=unused, **TINY)
        for _ in range(2):
            model.zero_grad()
            unpack(model(x=batch(comm.rank))).sum().backward()
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_parameters_of_other_dtypes(dtype):
    dtype = getattr(torch, dtype)

    def rank_main(comm):
        model = DataParallel(torch.nn.Linear(4, 2).to(dtype), comm)
        for _ in range(2):
            model.zero_grad()
            model(batch(comm.rank, dtype=dtype)).sum().backward()
        return gradients(model)

    plain = torch.nn.Linear(4, 2).to(dtype)
    expected = alone(plain, world=2, dtype=dtype)
    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_parameters_of_several_dtypes_have_buckets_of_their_own():
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (
                torch.nn.Linear(4, 4),
                torch.nn.Linear(4, 4).double(),
                torch.nn.Linear(4, 2),
            )
            whole_(self.parameters(), 0)

        def forward(self, x):
            return self.c(self.b(self.a(x).double()).float())

    expected = alone(Mixed(), world=2)

    def rank_main(comm):
        model = DataParallel(Mixed(), comm)
        for _ in range(2):
            model.zero_grad()
            model(batch(comm.rank)).sum().backward()
        assert [bucket.buffer.dtype for bucket in model._reducer.buckets] == [torch.float64, torch.float32]
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


@pytest.mark.parametrize("wire", ["bf16", "fp16", "int8", "fp8"])
def test_gradients_travel_as_fewer_bytes_but_stay_float32(wire):
    def rank_main(comm):
        layer = torch.nn.Linear(300, 1, bias=False)
        model = DataParallel(layer, comm, wire=wire)
        x = torch.linspace(0.1, 1.7, 300) * (comm.rank + 1)
        model(x).sum().backward()
        return layer.weight.grad[0].clone()

    exact = torch.linspace(0.1, 1.7, 300) * 1.5
    first, second = on_ranks(2, rank_main)
    assert first.dtype == torch.float32 and torch.equal(first, second)
    assert not torch.equal(first, exact)  # it was rounded on its way
    assert torch.allclose(first, exact, rtol=0.1, atol=0.02)


def test_wire_leaves_dtypes_alone_that_it_does_not_narrow():
    expected = alone(chain(dtype=torch.float64), world=2, dtype=torch.float64)

    def rank_main(comm):
        model = DataParallel(chain(dtype=torch.float64), comm, wire="bf16", **TINY)
        model(batch(comm.rank, dtype=torch.float64)).sum().backward()
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_autocast():
    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        with torch.autocast("cpu", torch.bfloat16):
            y = model(batch(comm.rank))
            assert y.dtype == torch.bfloat16
            y.float().sum().backward()
        return gradients(model)

    expected = None
    for rank in range(2):
        model = chain()
        with torch.autocast("cpu", torch.bfloat16):
            model(batch(rank)).float().sum().backward()
        own = gradients(model)
        expected = own if expected is None else [(a + b) / 2 for a, b in zip(expected, own, strict=True)]
    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_shared_and_frozen_parameters_and_other_strides():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
            self.one, self.two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.two.weight = self.one.weight
            self.one.bias.requires_grad_(False)
            whole_(self.parameters(), 0)

        def forward(self, x):
            return self.two(self.one(self.conv(x.view(-1, 2, 2, 4)[..., :2]).flatten(1)))

    expected = alone(Tied(), world=2)

    def rank_main(comm):
        model = DataParallel(Tied(), comm, **TINY)
        for _ in range(2):
            model.zero_grad()
            model(batch(comm.rank)).sum().backward()
        assert model.module.conv.weight.grad.stride() == model.module.conv.weight.stride()
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


# --- unusual uses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_forward_without_gradients_talks_to_nobody(mode):
    def rank_main(comm):
        model = DataParallel(torch.nn.Sequential(chain(), torch.nn.BatchNorm1d(2)), comm)
        if comm.rank == 0:
            with mode():
                return model(batch(0)).requires_grad
        return None

    assert on_ranks(2, rank_main) == [False, None]


def test_several_forward_passes_before_one_backward_pass():
    model = chain()
    (sum(model(batch(rank, step)).sum() for rank in range(2) for step in range(2)) / 2).backward()
    expected = gradients(model)

    def rank_main(comm):
        ours = DataParallel(chain(), comm, **TINY)
        for _ in range(2):
            ours.zero_grad()
            (ours(batch(comm.rank, 0)).sum() + ours(batch(comm.rank, 1)).sum()).backward()
        return gradients(ours)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_buffers_may_change_between_a_forward_pass_and_its_backward_pass():
    def rank_main(comm):
        model = DataParallel(torch.nn.BatchNorm1d(4), comm)
        (model(batch(comm.rank, 0)).sum() + model(batch(comm.rank, 1)).sum()).backward()
        return model.module.bias.grad.tolist()

    assert on_ranks(2, rank_main) == [[16] * 4] * 2


def test_a_second_backward_pass_through_the_same_graph():
    expected = alone(chain(), world=2)

    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        loss = model(batch(comm.rank)).sum()
        loss.backward(retain_graph=True)
        model.zero_grad()
        loss.backward()
        return gradients(model)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_gradients_of_inputs_are_no_backward_pass_of_ours():
    """As in a gradient penalty."""

    def penalty(model, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return model(x).sum() + slope.square().sum()

    model = chain()
    (sum(penalty(model, batch(rank)) for rank in range(2)) / 2).backward()
    expected = gradients(model)

    def rank_main(comm):
        ours = DataParallel(chain(), comm, **TINY)
        penalty(ours, batch(comm.rank)).backward()
        return gradients(ours)

    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_the_module_can_be_saved_and_copied_and_the_wrapper_says_that_it_cannot():
    def rank_main(comm):
        model = DataParallel(chain(), comm)
        model(batch(comm.rank)).sum().backward()
        for attempt in (copy.deepcopy, pickle.dumps, lambda it: torch.save(it, io.BytesIO())):
            with pytest.raises(TypeError, match=r"copy or save its \.module"):
                attempt(model)
        copied = copy.deepcopy(model.module)
        copied(batch(0)).sum().backward()  # without our hooks: nobody else takes part
        again = pickle.loads(pickle.dumps(model.module))
        assert list(again.state_dict()) == list(chain().state_dict()) and again[0].weight.grad is None

    on_ranks(1, rank_main)


def test_a_dropped_wrapper_leaves_the_module_alone():
    def rank_main(comm):
        module = chain()
        DataParallel(module, comm)
        gc.collect()
        assert all(not p._post_accumulate_grad_hooks for p in module.parameters())
        again = DataParallel(module, comm)
        again(batch(comm.rank)).sum().backward()
        return gradients(module)

    expected = alone(chain(), world=2)
    assert all(same(found, expected) for found in on_ranks(2, rank_main))
