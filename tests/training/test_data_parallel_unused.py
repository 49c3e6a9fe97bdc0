"""Parameters without gradients, and static graphs."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
from torch.utils.checkpoint import checkpoint

import ringreduce
from ringreduce import DataParallel
from ringreduce.training.foundation.reducer import Reducer
from tests.training.models import TINY, TwoHeads, batch, chain, gradients, on_ranks, same, with_heads

NAMES = [name for name, _ in TwoHeads().named_parameters()]

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
            assert same(found[step], with_heads(heads, step)), heads


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

    assert all(same(found, with_heads(["l", "l"])) for found in on_ranks(2, rank_main))


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
    complete, sent_before_end = Reducer._complete, []

    def noting(reducer):
        sent_before_end.append(len(reducer._sent))
        complete(reducer)

    monkeypatch.setattr(Reducer, "_complete", noting)

    def rank_main(comm):
        model = DataParallel(
            TwoHeads(), comm, find_unused_parameters=True, bucket_mb=1e-9, first_bucket_mb=1e-9
        )
        for heads in ("l", "r"):
            model(batch(comm.rank), heads).sum().backward()

    on_ranks(2, rank_main)
    assert sent_before_end == [len(NAMES)] * 4


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
        assert all(same(found[step], with_heads(["l", "r"], step)) for step in range(3))


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
