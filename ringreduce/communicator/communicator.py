"""The communicator itself: where its ranks are, its groups, and what it knows of itself."""

from __future__ import annotations

import atexit
import sys
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ringreduce import _engine, log
from ringreduce.annotations import Array, Wire
from ringreduce.communicator import objects
from ringreduce.communicator.base import DEFAULT_TIMEOUT
from ringreduce.communicator.choice import Choice
from ringreduce.communicator.collectives import Collectives
from ringreduce.communicator.links import Links
from ringreduce.communicator.messages import Messages
from ringreduce.synthesis import Synthesis, engine_synthesis, of_ranks

if TYPE_CHECKING:
    from ringreduce.model.model import Model
    from ringreduce.simulate.network import Network

__all__ = ["Communicator"]

T = TypeVar("T")

_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator(Collectives, Messages):
    """A group of ranks, of which this process (or thread) is one.

    Every collective must be called by all ranks of the group, in the same order, with arrays of the same dtype
    and (but for the uneven forms) the same number of elements. Common arguments:

    - ``x``: a NumPy array, torch tensor, or anything that speaks DLPack or the buffer protocol, of float64,
      float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int64, int32, int16, int8, uint64, uint32, uint16,
      uint8, bool, complex64 or complex128; of any shape, zero-size and zero-dimensional too, contiguous or not
      (which costs a copy).
    - ``op``: "sum", "avg", "prod", "min", "max", and for integers and bool "band", "bor", "bxor"; complex numbers
      have "sum", "avg" and "prod". 16- and 8-bit floats are accumulated in float32 at each combination.
    - ``algorithm``: "auto", a name from :func:`ringreduce.algorithms`, the name of a registered algorithm, or a
      function ``(world, rank) -> Schedule``; of arrays in GPU memory also "nccl", for NCCL's own.
    - ``wire``: what values travel as. Of float32 "bf16" or "fp16" for half of the bytes; of float32, float16 and
      bfloat16 "int8" or "fp8" (e4m3) for about a byte each, with a scale for every 256 values; None sends them as they
      are. What arrives is combined in float32, and 16-bit results are rounded once, at the end. All ranks still end
      with the same bits: so what a rank has of its own in the result of an all_gather or broadcast (the root's x too)
      is rounded like everybody's. docs/accuracy.md has the errors.
    - ``timeout``: seconds; None takes the communicator's.
    - ``async_op``: hand the call to the progress thread and return a :class:`Work` at once. Of arrays in GPU memory:
      put it on :attr:`device_stream`, behind what is on ``stream`` by now; ``work.wait()`` lets the stream wait.
    - ``stream``: for arrays in a GPU's memory, see below.

    Collectives take arrays in GPU memory, too: torch CUDA tensors and what has a ``__cuda_array_interface__`` (CuPy's
    arrays) or speaks DLPack, of groups of up to 16 ranks on one host, over NCCL of any. They are launched on a stream
    and the call returns at once; as all that is launched there, they run in order. ``stream`` is a handle, one of
    torch's or CuPy's streams, or anything with ``__cuda_stream__``; None takes torch's or CuPy's current one, and for
    other arrays :attr:`device_stream`. No ``wire``; messages go through the CPU's memory. Calls can be captured into
    CUDA graphs. A rank's arrays are all of one GPU. What goes wrong while kernels run is raised by later calls;
    docs/gpu.md has more.

    Collectives raise ValueError or TypeError for bad arguments (nothing has happened then), and
    :class:`~ringreduce.errors.PeerLost`, :class:`~ringreduce.errors.MismatchError` or
    :class:`~ringreduce.errors.TimeoutError` when the group cannot go on. Calls from several threads are safe,
    and run one after the other.
    """

    def __init__(self, engine: _engine.Communicator, timeout: float = DEFAULT_TIMEOUT) -> None:
        super().__init__(engine, timeout)
        self._link_names: list[str] | None = None
        _live.add(self)

    def __repr__(self) -> str:
        return f"<ringreduce.Communicator rank {self.rank} of {self.size} over {self.transport}>"

    @property
    def transport(self) -> str:
        """What moves the bytes: "local", "shm", "tcp", "mpi", "shm+tcp" or "shm+mpi".

        It is what came of the transport asked for in :func:`ringreduce.init`: of "auto" or "shm+tcp", "shm" where all
        ranks share a host. "local" is of :func:`ringreduce.local_group`.
        """
        return self._c.transport

    @property
    def reproducible(self) -> bool:
        """Whether an element of a reduction's result depends only on the ranks' values of that element.

        If so, all_reduce, reduce_scatter and reduce compute ((r0 + r1) + r2) + ... in rank order, 16- and 8-bit
        floats in float32 and rounded once at the end. The tensor's size, the element's place in it, the algorithm,
        the transport and the kind of memory no longer show in the bits. Algorithms that add in another order are
        refused with ValueError. Groups made by :meth:`split` and :meth:`shrink` inherit it.
        """
        return self._c.reproducible

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host, from 0: the one to pick a GPU by."""
        return self.hosts[self.host].index(self.rank)

    @property
    def local_size(self) -> int:
        """How many ranks this rank's host has, this one included: the number to divide its cores by."""
        return len(self.hosts[self.host])

    @property
    def host(self) -> int:
        """The number of this rank's host, an index of :attr:`hosts`; what some call the rank of the host."""
        return next(i for i, ranks in enumerate(self.hosts) if self.rank in ranks)

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host, in the order of the hosts' first ranks.

        RINGREDUCE_HOST may tell containers of one host apart.
        """
        return self._handles.hosts()

    @property
    def device_stream(self) -> int:
        """The handle of a CUDA stream of this rank's own, in no order with others; 0 before the first use of a GPU."""
        return self._c.device_stream

    @property
    def device_memory_held(self) -> int:
        """Bytes of GPU memory that this rank holds for the group."""
        return self._c.device_footprint

    @property
    def memory_held(self) -> int:
        """Bytes of memory that this rank holds for the group."""
        return self._c.footprint

    # --- objects -------------------------------------------------------------------------------------------

    def all_gather_object(self, obj: T, *, timeout: float | None = None) -> list[T]:
        """Every rank gets copies of all ranks' objects, in rank order.

        Objects travel pickled, and may be of different types and sizes. Unpickling runs code that the sender chooses:
        ranks must trust each other, as those of one job and one user do.

        Raises:
            ValueError: a rank's object cannot be pickled. Every rank raises it, and the group stays usable; or what a
                rank has sent cannot be unpickled here.
        """
        return objects.all_gather(self, obj, timeout)

    def broadcast_object(self, obj: Any = None, root: int = 0, *, timeout: float | None = None) -> Any:
        """Every rank gets a copy of the root's object, and the root the object itself.

        See :meth:`all_gather_object`.

        Args:
            obj: looked at on the root only.
        """
        return objects.broadcast(self, obj, root, timeout)

    def gather_object(self, obj: T, root: int = 0, *, timeout: float | None = None) -> list[T] | None:
        """The root gets copies of all ranks' objects, in rank order. Others get None.

        See :meth:`all_gather_object`.
        """
        return objects.gather(self, obj, root, timeout)

    def scatter_object(
        self, objs: Sequence[Any] | None = None, root: int = 0, *, timeout: float | None = None
    ) -> Any:
        """Rank r gets a copy of the root's r-th object, and the root its own one itself.

        See :meth:`all_gather_object`.

        Args:
            objs: one object for each rank; looked at on the root only.
        """
        return objects.scatter(self, objs, root, timeout)

    # --- groups --------------------------------------------------------------------------------------------

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """Divides the group: ranks of equal color form a new one, ordered by key, then by rank.

        Every rank must call it. With color None a rank joins none, and gets None.
        """
        child = self._c.split(color, key)
        return None if child is None else Communicator(child, self.timeout)

    def shrink(self) -> Communicator:
        """A new communicator of the ranks that are still there, after others were lost.

        Every survivor must call it. They keep their order.

        Raises:
            TimeoutError: a rank lives but does not call it.
        """
        return Communicator(self._c.shrink(), self.timeout)

    def measure_links(self) -> Links:
        """Measures what goes between each two hosts (or ranks, where all share a host), and makes use of it.

        Rings and chains then visit the ranks in the order in which they are fastest, and ``algorithm="auto"`` takes
        few rounds where latency matters most. Ranks on several hosts do it when they meet (of more than 16 hosts
        with some pairs only), unless RINGREDUCE_LINKS is off. Every rank must call it, with nothing else under
        way; the groups of split() and shrink() inherit what is known.
        """
        self._c.measure_links()
        return Links(self._c.links, self._c.ring_order)

    @property
    def links(self) -> Links | None:
        """What is known of the links between hosts; None where they were not measured."""
        found = self._c.links
        return Links(found, self._c.ring_order) if found.world else None

    def synthesise(self, network: Network | None = None) -> Synthesis:
        """Makes what ``algorithm="synthesised"`` runs: all-reduces for the network that joins these ranks.

        Without a ``network`` it is measured: all hosts send to each other in pairs, all pairs at once, because what
        they share shows only then. Every rank must call it, with nothing else under way. Where links are known, the
        first call with ``algorithm="synthesised"`` does it. The groups of split() and shrink() make their own.

        Args:
            network: a described one, the same on all ranks.

        Raises:
            ValueError: the network has another number of ranks, or is not connected.
        """
        if network is None:
            self._link_names = None
            self._c.synthesise()
        else:
            made, world, names = engine_synthesis(network)
            if world != self.size:
                raise ValueError(f"network: it has {world} ranks, and there are {self.size}")
            self._c.synthesise_for(made)
            self._link_names = names
        found = self.synthesis
        assert found is not None
        return found

    @property
    def synthesis(self) -> Synthesis | None:
        """What :meth:`synthesise` has made; None where it has not been called."""
        return of_ranks(self._c, self._link_names)

    def explain(
        self,
        nbytes: int,
        collective: str = "all_reduce",
        wire: Wire | None = None,
        model: Model | None = None,
    ) -> Choice:
        """What ``algorithm="auto"`` picks for a buffer of that many bytes (all ranks' blocks together), and why.

        With a ``wire`` format these are a float32's four bytes a value, whatever type the arrays have.

        Args:
            model: says how long each algorithm would take, and of what that is made; see :mod:`ringreduce.model`.

        Raises:
            ValueError: there is no such collective, or the model does not know messages that these ranks send.
        """
        choice = self._c.explain(collective, nbytes, wire)
        if model is None:
            return Choice(*choice)
        each = {len(ranks) for ranks in self.hosts}
        if len(each) > 1:
            raise ValueError("model: it predicts for hosts that have equally many ranks")
        return Choice(*choice, model.ranking(nbytes, self.size, collective, each.pop()))

    def close(self) -> None:
        """Waits for calls under way, then leaves the group. Doing it twice is fine."""
        self._c.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # peers may never come to what is under way
            self._c.leave()

    def register(self, x: Array) -> None:
        """Lets NCCL use x, which is in a GPU's memory, in place, until :meth:`deregister` or the end of the group.

        What calls over NCCL are given may be registered memory or any other; x is known by its first byte. Where
        NCCL has not been used before, every rank must call it: they meet. Needs NCCL 2.19 or newer.
        """
        self._c.register_memory(x)

    def deregister(self, x: Array) -> None:
        """Ends what :meth:`register` has begun, which must be done before x's memory is given back."""
        self._c.deregister_memory(x)


@atexit.register
def _close_all() -> None:
    """Peers must learn that a rank has ended well, and not wait for it or think it died."""
    crashed = getattr(sys, "last_value", None) is not None  # set where an exception ends the interpreter
    for comm in list(_live):
        if crashed:
            comm._c.leave()
        else:
            comm.close()
    log.drain()
