"""The loop: ``for step in elastic.steps(state, 1000): with step: ...``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from ringreduce import errors
from ringreduce.training.elastic.checkpoints import Checkpoints
from ringreduce.training.elastic.elastic_group import ElasticGroup, Phase
from ringreduce.training.elastic.first_group import joins
from ringreduce.training.elastic.losses import is_loss
from ringreduce.training.elastic.state import State
from ringreduce.training.foundation.agreement import check_positive, check_whole

__all__ = ["Step", "steps"]


def steps(
    state: State, count: int, *, minimum: int = 1, timeout: float = 60.0, checkpoints: Checkpoints | None = None,
    settings: object = None,
) -> Iterator[Step]:  # fmt: skip
    """Yields steps until ``count`` are done, while ranks may be lost and may join.

    The body of a step is a ``with`` block. It computes gradients and calls ``optimizer.step()``::

        for step in elastic.steps(state, 1000, minimum=2):
            with step:
                x, y = batch(step.number, step.rank, step.size)
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()

    Within ``optimizer.step()`` of any optimizer of the state, before it changes anything, the ranks agree that all of
    them have their gradients. If a rank is lost before that, the block ends on all survivors, what it changed in the
    state is undone, and the same step is yielded again. If a rank is lost later, every survivor applies the step. A
    block that calls no ``optimizer.step()`` is agreed on at its end, or where it calls :meth:`Step.agree`. Other
    exceptions leave the block as always.

    Code after the agreement in the block may change the state, and may then communicate. A loss there, or in the
    agreement, ends the block where it communicates, but not the step. Newcomers join between two steps.

    Args:
        state: the state. All of its optimizers make their steps after the last gradients were exchanged.
        count: the number of the last step, counted from the first step of the state.
        minimum: waits for newcomers while there are fewer ranks.
        timeout: the seconds for which it waits.
        checkpoints: where to begin from, and what to write. If a part of the state is lost with all of its copies, all
            ranks return to the newest checkpoint.
        settings: any other value that must be the same on all ranks; its text is compared.

    Raises:
        TimeoutError: fewer ranks than the minimum were left, and no others came in time.
        Error: this rank's state is not like that of the others, or a part of the state was on lost ranks only.
    """
    if not isinstance(state, State):
        raise TypeError(f"state must be a State, not {type(state).__name__}")
    check_whole(count, "count", 0)
    check_whole(minimum, "minimum", 1)
    if not isinstance(checkpoints, Checkpoints | None):
        raise TypeError(f"checkpoints must be Checkpoints or None, not {type(checkpoints).__name__}")
    check_positive(timeout, "timeout")
    _check_count(state, count)
    every = None if checkpoints is None else checkpoints.every
    how = {"minimum": minimum, "count": count, "settings": settings, "checkpoints every": every}
    group = ElasticGroup(state, minimum, timeout, how, joins(state.comm), checkpoints)
    hooks = [_watch(watched, group) for watched in state.watched]
    try:
        group.settle()
        _check_count(state, count)
        while state.step < count:
            step = Step(group)
            yield step
            if step.is_open:
                raise RuntimeError("a step must be the context of a with block: with step: ...")
            if (
                checkpoints is not None
                and step.done
                and (
                    state.step >= count or state.step // checkpoints.every > step.number // checkpoints.every
                )
            ):
                checkpoints.write(state)
        _end_together(group)
        if checkpoints is not None:
            checkpoints.wait()
    finally:
        for remove in hooks:
            remove()


def _check_count(state: State, count: int) -> None:
    if state.step > count:
        raise ValueError(f"count is {count}, but the state has done {state.step} steps")


def _watch(optimizer: Any, group: ElasticGroup) -> Callable[[], None]:
    """Makes an optimizer agree before it changes anything. Returns a function that ends this."""
    if hasattr(optimizer, "elastic"):
        optimizer.elastic = group

        def forget() -> None:
            optimizer.elastic = None

        return forget
    remove: Callable[[], None] = optimizer.register_step_pre_hook(lambda *_: group.commit()).remove
    return remove


def _end_together(group: ElasticGroup) -> None:
    """Waits for the others, so that none of them takes this rank's end for a loss."""
    try:
        group.settle()
        group.comm.barrier()
    except errors.Error as error:
        if not is_loss(error):
            raise


class Step:
    """A step of :func:`steps`: a context in which ranks may be lost.

    Attributes:
        number: the number of steps done before this one.
        comm: the group with which the step began. If a rank is lost, it is closed.
    """

    def __init__(self, group: ElasticGroup) -> None:
        self._group, self.comm = group, group.comm
        self.number = group.state.step
        self._kept: Any = None
        self.is_open = True

    @property
    def rank(self) -> int:
        """This rank's number when the step began."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """The number of ranks when the step began."""
        return self.comm.size

    @property
    def done(self) -> bool:
        """Whether the step was applied. After the block, False means that the step is repeated."""
        return self._group.state.step > self.number

    def agree(self, steps: int = 1) -> None:
        """Agrees with the other ranks that the block can be applied, as the step of an optimizer does.

        Args:
            steps: the number of steps that the block has made, by which ``state.step`` grows. It must be the same on
                all ranks.

        Raises:
            PeerLost: the block is lost, because a rank died before all came here. The context catches it.
        """
        self._group.commit(steps)

    def __enter__(self) -> Step:
        self._group.open()
        self.comm = self._group.comm
        self.number = self._group.state.step
        self._kept = self._group.state.keep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        group, self.is_open = self._group, False
        if error is None:
            try:
                group.commit()  # unless an optimizer has
            except errors.Error as lost:
                if not is_loss(lost):
                    raise
                error = lost
        if error is not None:
            if not (is_loss(error) or (self._goes_on and isinstance(error, errors.ClosedError))):
                group.phase = Phase.OUTSIDE
                return False
            self._lose(error)
        group.phase = Phase.OUTSIDE
        group.settle()
        return True

    @property
    def _goes_on(self) -> bool:
        """Whether the ranks have lost one, but apply the step: the agreement has recovered already."""
        return self._group.phase is Phase.APPLIED and self._group.comm is not self.comm

    def _lose(self, error: BaseException) -> None:
        group = self._group
        if self._goes_on:
            return
        if group.phase is Phase.APPLIED:
            group.recover(error)
        elif group.phase is Phase.OPEN:
            group.phase = Phase.OUTSIDE
            group.state.put_back(self._kept)
            group.recover(error)
        else:  # commit() has recovered, and told that the step is lost
            group.state.put_back(self._kept)
