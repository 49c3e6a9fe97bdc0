"""Parameters without gradients, static graphs, and steps that fail."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
from torch.utils.checkpoint import checkpoint

import ringreduce
from ringreduce import DataParallel
from ringreduce.data_parallel.reducer import Reducer
from tests.training.models import TINY, TwoHeads, chain, gradients, on_ranks, same, whole

NAMES = [name for name, _ in TwoHeads().named_parameters()]


def batch(rank: int, step: int = 0) -> Any:
    return whole(8, 4, seed=100 * step + rank)


def alone(heads: list[str], step: int = 0) -> list[Any]:
    model = TwoHeads()
    (sum(model(batch(rank, step), own).sum() for rank, own in enumerate(heads)) / len(heads)).backward()
    return gradients(model)


STEPS = [["lr", "lr"], ["l", "r"], ["l", "l"], ["r", "lr"], ["", "r"]]  # the heads that each rank uses


def test_unused_parameters():
    def rank_main(comm):
        model = DataParallel(TwoHeads(), comm, find_unused_parameters=True, **TINY)
        found = []
        for step, heads in enumerate(STEPS):
            model.zero_grad()
            loss = model(batch(comm.rank, step), heads[comm.rank]).sum()
            if heads[comm.rank]:
                loss.backward()
            else:  # nothing to go back through; gradients are zeros all the same
                (loss + 0 * model.module.body.weight.sum()).backward()
            found.append(gradients(model))
        return found

    for found in on_ranks(2, rank_main):
        for step, heads in enumerate(STEPS):
            assert same(found[step], alone(heads, step)), heads


def test_a_rank_that_uses_no_parameter_at_all():
    """Its loss depends on the input only, but others wait for its gradients."""

    class Bypass(TwoHeads):
        def forward(self, x, heads="lr"):
            return super().forward(x, heads) if heads else x * 2

    def rank_main(comm):
        model = DataParallel(Bypass(), comm, find_unused_parameters=True, **TINY)
        for _ in range(2):
            model.zero_grad()
            model(batch(comm.rank).requires_grad_(), "lr" if comm.rank else "").sum().backward()
        return gradients(model)

    model = TwoHeads()
    (model(batch(1)).sum() / 2).backward()
    assert all(same(found, gradients(model)) for found in on_ranks(2, rank_main))


def test_an_output_that_the_loss_ignores():
    class Both(TwoHeads):
        def forward(self, x):
            return super().forward(x, "l"), super().forward(x, "r")

    def rank_main(comm):
        model = DataParallel(Both(), comm, find_unused_parameters=True, **TINY)
        for _ in range(2):
            model.zero_grad()
            model(batch(comm.rank))[0].sum().backward()
        return gradients(model)

    assert all(same(found, alone(["l", "l"])) for found in on_ranks(2, rank_main))


def test_used_in_an_earlier_backward_pass_counts():
    def rank_main(comm):
        model = DataParallel(TwoHeads(), comm, find_unused_parameters=True, **TINY)
        with model.no_sync():
            model(batch(comm.rank, 0), "r").sum().backward()
        model(batch(comm.rank, 1), "l").sum().backward()
        return gradients(model)

    model = TwoHeads()
    (sum(model(batch(r, s), h).sum() for r in range(2) for s, h in enumerate("rl")) / 2).backward()
    assert all(same(found, gradients(model)) for found in on_ranks(2, rank_main))


def test_buckets_of_unused_parameters_do_not_hold_up_others(monkeypatch):
    """The walk through the graph finds them: all buckets are on their way when the last used gradient has come."""
    finish, sent_before_end = Reducer._finish, []

    def noting(reducer, failure):
        sent_before_end.append(len(reducer._sent))
        finish(reducer, failure)

    monkeypatch.setattr(Reducer, "_finish", noting)

    def rank_main(comm):
        model = DataParallel(
            TwoHeads(), comm, find_unused_parameters=True, bucket_mb=1e-9, first_bucket_mb=1e-9
        )
        for heads in ("l", "r"):
            model(batch(comm.rank), heads).sum().backward()

    on_ranks(2, rank_main)
    assert sent_before_end == [len(NAMES)] * 4


@pytest.mark.parametrize("lacking", [[0, 1], [1]], ids=["on all ranks", "on one rank"])
def test_a_missing_gradient_is_an_error_on_every_rank_and_training_can_go_on(lacking):
    class Three(TwoHeads):
        def __init__(self):
            super().__init__()
            del self.never

    def rank_main(comm):
        model = DataParallel(Three(), comm, **TINY)
        for _ in range(2):
            with pytest.raises(ringreduce.Error) as caught:
                model(batch(comm.rank), "l" if comm.rank in lacking else "lr").sum().backward()
            for rank in range(2):
                assert (f"rank {rank}: the backward pass brought no" in str(caught.value)) == (
                    rank in lacking
                )
            assert "'right.weight', 'right.bias' (find_unused_parameters=True" in str(caught.value)
        model.zero_grad()
        model(batch(comm.rank)).sum().backward()
        return gradients(model)

    expected = alone(["lr", "lr"])[:-2]
    assert all(same(found, expected) for found in on_ranks(2, rank_main))


def test_a_message_with_many_names_is_cut_short():
    def rank_main(comm):
        layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(30))
        layers.forward = lambda x: layers[0](x)
        model = DataParallel(layers, comm)
        with pytest.raises(ringreduce.Error, match="and 48 more"):
            model(torch.ones(1, 1)).sum().backward()

    on_ranks(1, rank_main)


# --- static graphs -------------------------------------------------------------------------------------------------


def test_a_static_graph_with_unused_parameters():
    def rank_main(comm):
        model = DataParallel(TwoHeads(), comm, static_graph=True, **TINY)
        found = []
        for step in range(3):
            model.zero_grad()
            model(batch(comm.rank, step), "lr"[comm.rank]).sum().backward()
            found.append(gradients(model))
        return found

    for found in on_ranks(2, rank_main):
        assert all(same(found[step], alone(["l", "r"], step)) for step in range(3))


class Checkpointed(torch.nn.Module):
    """One block used twice, its activations computed anew: its hooks are called twice in a backward pass."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.chain = chain()
        self.block = torch.nn.Linear(2, 2)
        torch.nn.init.eye_(self.block.weight)
        torch.nn.init.ones_(self.block.bias)
        self.reentrant = reentrant

    def forward(self, x):
        x = self.chain(x)
        for _ in range(2):
            plain = self.reentrant is None
            x = self.block(x) if plain else checkpoint(self.block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant, static", [(True, True), (False, True), (False, False)])
def test_checkpointing(reentrant, static):
    model = Checkpointed(None)
    (sum(model(batch(rank)).sum() for rank in range(2)) / 2).backward()

    def rank_main(comm):
        ours = DataParallel(Checkpointed(reentrant), comm, static_graph=static, **TINY)
        for _ in range(3):
            ours.zero_grad()
            ours(batch(comm.rank)).sum().backward()
        assert ours._reducer.slots[-1].expected == (2 if reentrant else 1)
        return gradients(ours)

    assert all(same(found, gradients(model)) for found in on_ranks(2, rank_main))


def test_a_model_that_is_all_within_reentrant_checkpoints():
    """No parameter's hook is called in the outer backward pass."""

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.chain = chain()

        def forward(self, x):
            return checkpoint(
                self.chain[2:], checkpoint(self.chain[:2], x, use_reentrant=True), use_reentrant=True
            )

    model = chain()
    (sum(model(batch(rank)).sum() for rank in range(2)) / 2).backward()

    def rank_main(comm):
        ours = DataParallel(Wrapped(), comm, **TINY)
        for _ in range(2):
            ours.zero_grad()
            ours(batch(comm.rank).requires_grad_()).sum().backward()
        return gradients(ours)

    assert all(same(found, gradients(model)) for found in on_ranks(2, rank_main))


def test_reentrant_checkpointing_of_a_shared_block_says_what_helps():
    def rank_main(comm):
        model = DataParallel(Checkpointed(True), comm, **TINY)
        with pytest.raises(
            ringreduce.Error, match=r"'block\.(bias|weight)' got one more.*static_graph=True helps"
        ):
            model(batch(comm.rank)).sum().backward()

    on_ranks(2, rank_main)


def test_a_graph_that_is_not_static_is_an_error():
    def rank_main(comm):
        model = DataParallel(TwoHeads(), comm, static_graph=True, **TINY)
        model(batch(comm.rank)).sum().backward()
        with pytest.raises(
            ringreduce.Error, match=r"'right\.weight', 'right\.bias' \(the graph is not static\)"
        ):
            model(batch(comm.rank), "l").sum().backward()

    on_ranks(2, rank_main)


# --- failures ------------------------------------------------------------------------------------------------------


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("failing", [[0, 1], [1]], ids=["on all ranks", "on one rank"])
def test_after_an_exception_in_a_backward_pass_the_next_step_is_right(failing):
    def rank_main(comm):
        model = DataParallel(chain(), comm, bucket_mb=1e-9, first_bucket_mb=1e-9)
        for step in range(3):
            model.zero_grad()
            failed = comm.rank in failing
            model.module[2].register_forward_hook(
                lambda m, x, y, failed=failed: Fails.apply(y) if failed else y
            )
            # Some buckets are sent before it happens.
            with pytest.raises(ZeroDivisionError if failed else ringreduce.Error) as caught:
                model(batch(comm.rank, step)).sum().backward()
            if not failed:
                assert "rank 1: its backward pass failed" in str(caught.value)
            model.module[2]._forward_hooks.clear()
            model.zero_grad()
            model(batch(comm.rank, step)).sum().backward()
        return gradients(model)

    model = chain()
    (sum(model(batch(rank, 2)).sum() for rank in range(2)) / 2).backward()
    assert all(same(found, gradients(model)) for found in on_ranks(2, rank_main))


def test_a_rank_that_dies_in_its_backward_pass_is_an_error_for_the_others_soon():
    def rank_main(comm):
        model = DataParallel(chain(), comm, **TINY)
        model(batch(comm.rank)).sum().backward()
        if comm.rank == 1:
            return None  # ends well, and closes its communicator
        start = time.monotonic()
        with pytest.raises(ringreduce.PeerLost, match="rank 1"):
            model(batch(comm.rank)).sum().backward()
        return time.monotonic() - start

    assert ringreduce.run(rank_main, 2, timeout=20)[0] < 5


def test_sparse_gradients_are_refused_by_name():
    def rank_main(comm):
        embedding = torch.nn.Embedding(4, 2, sparse=True)
        model = DataParallel(embedding, comm)
        with pytest.raises(TypeError, match="parameter 'weight' is sparse"):
            model(torch.tensor([1])).sum().backward()

    on_ranks(1, rank_main)
