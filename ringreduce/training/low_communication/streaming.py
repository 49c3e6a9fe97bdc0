"""Streaming DiLoCo: parts of the model are synchronised in turn, while training continues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from ringreduce.annotations import Wire
from ringreduce.communicator import Communicator
from ringreduce.training.foundation.timings import StepTimings
from ringreduce.training.low_communication.fragment import Fragment
from ringreduce.training.low_communication.outer import Outer, Tensor

__all__ = ["StreamingDiLoCo"]


class StreamingDiLoCo(Outer):
    """Synchronises one fragment of the model after the other, each as :class:`DiLoCo` does, every ``every`` steps.

    A fragment's outer gradients travel while the next ``overlap`` steps are computed. Then the outer optimizer updates
    the fragment's anchors, and the rank's parameters become ``mixing`` times its own plus ``1 - mixing`` times the
    anchors. See Douillard et al., "Streaming DiLoCo with overlapping communication" (2025). With one fragment and
    ``overlap=0`` it is DiLoCo. The paper's outer gradients have 4 bits; here the smallest format has 8.

    Between two synchronisations the ranks' parameters differ. :meth:`common` gives the anchors, which do not.

    After :meth:`regroup`, each fragment continues from its own last synchronisation. The ranks of the new group resend
    their outer gradients of fragments in flight, so these are synchronised as if nothing had happened.

    Args:
        parameters: see :class:`Outer`.
        comm: see :class:`Outer`.
        every: the number of steps between two synchronisations of a fragment. Those of fragment p are counted from step
            ``p * every // len(fragments)``.
        fragments: the number of fragments, each a run of parameters with about as many elements as the others. Or
            the fragments themselves, as sequences of parameters, for example every fourth layer.
        overlap: the number of steps in which a fragment's outer gradients travel, less than ``every``.
        mixing: from 0 to 1. None means 0 without overlap, and 0.5 with it.
        lr: see :class:`DiLoCo`.
        momentum: see :class:`DiLoCo`.
        wire: see :class:`DiLoCo`.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        comm: Communicator | None = None,
        *,
        every: int = 100,
        fragments: int | Sequence[Iterable[Tensor]] = 4,
        overlap: int = 1,
        mixing: float | None = None,
        lr: float = 0.7,
        momentum: float = 0.9,
        wire: Wire | None = None,
    ) -> None:
        self.mixing = (0.5 if overlap else 0.0) if mixing is None else mixing
        parameters = list(parameters)
        number = {id(p): place for place, p in enumerate(p for p in parameters if p.requires_grad)}
        groups: Any = fragments
        if not isinstance(fragments, int):
            groups = [[number.get(id(p), -1) for p in one if p.requires_grad] for one in fragments]
        options = {"fragments": groups, "overlap": overlap, "mixing": self.mixing}
        super().__init__(parameters, comm, every, **options, lr=lr, momentum=momentum, wire=wire)
        self._require("overlap", overlap, 0 <= overlap < every, f"from 0 to {every - 1}")
        self._require("mixing", self.mixing, 0 <= self.mixing <= 1, "from 0 to 1")
        self.overlap = overlap
        if isinstance(fragments, int):
            groups = cut([parameter.numel() for parameter in self.parameters], fragments)
        if (
            sorted(place for group in groups for place in group) != [*range(len(self.parameters))]
            or [] in groups
        ):
            raise ValueError("fragments must not be empty, and must hold each of the parameters once")
        self._groups: list[list[int]] = groups
        self._exchange = self._new_exchange()
        self._fragments = [
            Fragment([self.parameters[place] for place in group], self._exchange, wire, lr, momentum)
            for group in groups
        ]
        self._sent_at: list[int | None] = [None] * len(groups)
        self.sent = [None] * len(groups)  # this rank's outer gradients of each fragment in flight

    def _new_exchange(self) -> Communicator:
        """Returns the group in which outer gradients travel, a separate one: other calls would wait for them."""
        own = self.comm.split(0) if self.overlap else self.comm
        assert own is not None
        return own

    @property
    def optimizers(self) -> list[Any]:
        """The outer optimizers of the fragments, each a torch.optim.SGD."""
        return [fragment.optimizer for fragment in self._fragments]

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for place, fragment in enumerate(self._fragments):
            sent_at = self._sent_at[place]
            if sent_at is not None and self.steps == sent_at + self.overlap:
                self._receive(place)
            if (self.steps - self._offset(place)) % self.every == 0:
                self._sent_at[place], self.sent[place] = self.steps, fragment.outer_gradients()
                self._send(place)
                if self.overlap == 0:
                    self._receive(place)
        taken = [fragment.average.timings() for fragment in self._fragments]
        self.timings = StepTimings(
            [bucket for one in taken for bucket in one.buckets], [wait for one in taken for wait in one.waits]
        )

    def _offset(self, place: int) -> int:
        return place * self.every // len(self._fragments)

    def _send(self, place: int, weight: float = 1.0) -> None:
        fragment, sent_at = self._fragments[place], self._sent_at[place]
        assert sent_at is not None
        fragment.average.start(self.sent[place] or fragment.anchors, sent_at, weight=weight)
        self.bytes_sent += fragment.average.nbytes

    def _receive(self, place: int) -> None:
        fragment = self._fragments[place]
        fragment.outer_step(fragment.average.finish(), self.mixing)
        self._sent_at[place] = self.sent[place] = None

    def _last(self) -> list[Tensor]:
        found: list[Tensor] = [None] * len(self.parameters)
        for group, fragment in zip(self._groups, self._fragments, strict=True):
            for place, anchor in zip(group, fragment.anchors, strict=True):
                found[place] = anchor
        return found

    # --- other ranks -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def regroup(self, comm: Communicator) -> None:
        """As :meth:`Outer.regroup`. The ranks that have outer gradients in flight send them again."""
        super().regroup(comm)
        if self.overlap:
            self._exchange.close()  # ends averages in flight, so that their memory can be reused
        self._exchange = self._new_exchange()
        for fragment in self._fragments:
            fragment.average.regroup(self._exchange)
        have = np.array([sent is not None for sent in self.sent], np.int64)
        for place, count in enumerate(self._exchange.all_reduce(have).tolist()):
            if count:
                self._send(place, weight=comm.size / count if have[place] else 0.0)
            else:  # nothing is in flight, or all ranks that had sent it are lost
                self._sent_at[place] = None

    def take(self, sent: Sequence[list[list[Tensor] | None]]) -> None:
        """Of several ranks' outer gradients, each rank sends those of one, or the sum of several, or nothing."""
        ours = sent[self.comm.rank :: self.comm.size]
        share = self.comm.size / len(sent)
        for place, fragment in enumerate(self._fragments):
            if self._sent_at[place] is not None:
                zeros = [torch.zeros_like(anchor) for anchor in fragment.anchors]
                self.sent[place] = [
                    share * sum(parts, zero)
                    for zero, *parts in zip(zeros, *(one[place] or zeros for one in ours), strict=True)
                ]

    # --- saving ----------------------------------------------------------------------------------------------

    def common_state(self) -> dict[str, Any]:
        fragments = [
            {**fragment.state_dict(), "sent_at": sent_at}
            for fragment, sent_at in zip(self._fragments, self._sent_at, strict=True)
        ]
        return {**super().state_dict(), "fragments": fragments}

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`Outer.state_dict`. It waits for outer gradients in flight, and holds their averages."""
        state = self.common_state()
        for fragment, one in zip(self._fragments, state["fragments"], strict=True):
            under_way = one["sent_at"] is not None
            one["under_way"] = [view.clone() for view in fragment.average.finish()] if under_way else []
        return state

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        super().load_state_dict(saved)
        if len(saved["fragments"]) != len(self._fragments):
            raise ValueError(f"saved has {len(saved['fragments'])} fragments, not {len(self._fragments)}")
        for place, (fragment, one) in enumerate(zip(self._fragments, saved["fragments"], strict=True)):
            fragment.load_state_dict(one)
            self._sent_at[place], self.sent[place] = one["sent_at"], one.get("under_way") or None
            if self.sent[place] is not None:
                fragment.average.load(one["under_way"])


def cut(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Cuts a sequence into ``count`` runs of about the same total size. Returns the places in each run.

    Raises:
        ValueError: there are fewer parameters than fragments.
    """
    if not 1 <= count <= len(sizes):
        raise ValueError(f"fragments must be from 1 to the {len(sizes)} parameters, not {count}")
    ends = list(accumulate(sizes))
    runs: list[list[int]] = []
    begin = 0
    for number in range(1, count + 1):
        wanted, latest = ends[-1] * number / count, len(sizes) - (count - number)
        end = begin + 1
        while end < latest and (number == count or ends[end] <= wanted):
            end += 1
        runs.append([*range(begin, end)])
        begin = end
    return runs
