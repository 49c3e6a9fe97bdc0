"""Says which worker may begin which batch: clocks, the bound on staleness, the batches of lost workers. Pure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["END", "Grant", "Tickets"]

END = -1  # instead of a ticket: all batches are done


class Grant(NamedTuple):
    """The permission to begin a batch.

    Attributes:
        ticket: the batch's number, or END.
        clock: the clock of the batch. At END, the first clock that has no batch.
        present: which batches of the clock before count.
        floor: all tickets below it are settled.
    """

    ticket: int
    clock: int
    present: list[bool]
    floor: int


class _Ask(NamedTuple):
    number: int
    wanted: int | None
    until: int


class Tickets:
    """Hands out the numbers of batches, which are called tickets, and keeps the bound on staleness.

    Ticket t belongs to clock t // workers. It is *settled* once its gradient is on all shards, or once it never will
    be. A worker may begin a ticket of clock c when all tickets of the clocks before c - staleness are settled. These
    are the stale synchronous reads of Ho et al., "More effective distributed ML via a stale synchronous parallel
    parameter server" (2013), with clocks of a fixed amount of work.

    Tickets are either fixed, so that worker w has the tickets w, w + workers and so on; those of a lost worker are
    lost, too. Or they are shared, so that a worker takes the next one whenever it is free; that of a lost worker goes
    to another one. Then a slow worker gets fewer batches, and others need not wait for it (Harlap et al., "Addressing
    the straggler problem for iterative convergent parallel ML", 2016, give slow workers' work to others within a clock
    of such a server).

    The state depends only on the order of the calls, so a copy that sees the same calls has the same state. Calls may
    be repeated.
    """

    def __init__(self, workers: int, staleness: int | None) -> None:
        self.workers, self.staleness = workers, staleness
        self.floor = 0
        self.settled: set[int] = set()  # from the floor on, with a gradient
        self.lost: set[int] = set()  # without one; also those a clock below the floor
        self.gone: set[int] = set()  # workers
        self.asking: dict[int, _Ask] = {}  # by worker, in the order in which they asked
        self.answers: dict[int, tuple[int, Grant]] = {}  # by worker: the number of its ask
        # Of shared tickets only:
        self.shared = False
        self.until = 0  # the end of the tickets that there are
        self.next = 0  # the first ticket that no one has had
        self.again: list[int] = []  # tickets whose worker was lost
        self.taken: dict[int, int] = {}  # the worker of each open ticket

    # --- calls ---------------------------------------------------------------------------------------------

    def ask(self, worker: int, number: int, confirmed: int, wanted: int | None, until: int = 0) -> None:
        """Asks for a ticket.

        Args:
            number: counts the worker's asks. One that was seen before changes nothing.
            confirmed: the ticket whose gradient the worker has brought to all shards since its last ask, or END.
            wanted: the fixed ticket that the worker will do next. None: any shared one.
            until: the end of the shared tickets.
        """
        known = self.asking[worker].number if worker in self.asking else self.answers.get(worker, (-1,))[0]
        if worker in self.gone or number <= known:
            return
        self.confirm(worker, confirmed)
        if wanted is None:
            self.shared, self.until = True, max(self.until, until)
            self._take_back(worker)
        self.asking[worker] = _Ask(number, wanted, until)
        self._answer()

    def confirm(self, worker: int, ticket: int) -> None:
        """Settles a ticket, unless END."""
        if ticket >= self.floor:
            self.settled.add(ticket)
        if self.taken.get(ticket) == worker:
            del self.taken[ticket]

    def leave(self, worker: int) -> None:
        """Says that the worker has ended or was lost."""
        self.gone.add(worker)
        self.asking.pop(worker, None)
        self._take_back(worker)
        self._answer()

    def answer(self, worker: int, number: int) -> Grant | None:
        """Returns the answer to an ask, or None if it must wait."""
        answered, grant = self.answers.get(worker, (-1, None))
        return grant if answered == number else None

    # --- what follows from them ----------------------------------------------------------------------------

    def _take_back(self, worker: int) -> None:
        given_up = [ticket for ticket, whose in self.taken.items() if whose == worker]
        for ticket in given_up:
            del self.taken[ticket]
            if ticket not in self.settled and ticket >= self.floor:
                self.again.append(ticket)
        self.again.sort()

    def _advance(self) -> None:
        everyone_gone = len(self.gone) == self.workers
        while True:
            if self.floor in self.settled:
                self.settled.remove(self.floor)
            elif not self.shared and self.floor % self.workers in self.gone and not everyone_gone:
                self.lost.add(self.floor)
            else:
                break
            self.floor += 1
        if self.shared and self.floor >= self.until:  # the clock ends with the last batch
            begin = -(-self.floor // self.workers) * self.workers
            self.lost.update(range(self.floor, begin))
            self.floor = self.next = begin
        self.lost = {ticket for ticket in self.lost if ticket >= self.floor - 2 * self.workers}

    def _answer(self) -> None:
        self._advance()
        for worker, ask in list(self.asking.items()):
            ticket = self._next(ask.until) if ask.wanted is None else ask.wanted
            if ticket is None or (ticket != END and not self._may_begin(ticket)):
                continue
            if ask.wanted is None and ticket != END:
                self._take(worker, ticket)
            del self.asking[worker]
            self.answers[worker] = ask.number, self._grant(ticket)

    def _next(self, until: int) -> int | None:
        ticket = self.again[0] if self.again else self.next
        if ticket < until:
            return ticket
        # Until the last gradient has arrived, its worker may be lost, and its batch may go to another one.
        return END if self.floor >= until else None

    def _take(self, worker: int, ticket: int) -> None:
        if self.again:
            self.again.remove(ticket)
        else:
            self.next += 1
        self.taken[ticket] = worker

    def _may_begin(self, ticket: int) -> bool:
        if self.staleness is None:
            return True
        return self.floor >= (ticket // self.workers - self.staleness) * self.workers

    def _grant(self, ticket: int) -> Grant:
        clock = self.floor // self.workers if ticket == END else ticket // self.workers
        before = range((clock - 1) * self.workers, clock * self.workers)
        return Grant(ticket, clock, [number not in self.lost for number in before], self.floor)
