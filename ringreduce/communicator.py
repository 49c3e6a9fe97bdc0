"""The communicator: a group of ranks and what they can do together."""

from __future__ import annotations

import atexit
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ringreduce import _engine, arrays, blocks, staging
from ringreduce._engine import values
from ringreduce.arrays import Array
from ringreduce.choice import Choice
from ringreduce.handles import AUTO, Algorithm, Handles
from ringreduce.links import Links
from ringreduce.streams import Stream
from ringreduce.synthesis import Synthesis, engine_synthesis, of_ranks
from ringreduce.work import GpuWork, Work

if TYPE_CHECKING:
    from ringreduce.model import Model
    from ringreduce.simulate.network import Network

__all__ = ["Communicator"]

DEFAULT_TIMEOUT = 300.0

_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator:
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
        self._c = engine
        self._fast_all_reduce = engine.all_reduce
        self._handles = Handles(engine)
        self._link_names: list[str] | None = None
        self._under_way: deque[Work] = deque()
        self.timeout = timeout
        self.rank: int = engine.rank
        self.size: int = engine.size
        _live.add(self)

    def __repr__(self) -> str:
        return f"<ringreduce.Communicator rank {self.rank} of {self.size} over {self.transport}>"

    @property
    def transport(self) -> str:
        """What moves the bytes: "shm" or "local"."""
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
        """This rank's number among the ranks of its host."""
        return self.hosts[self.host].index(self.rank)

    @property
    def host(self) -> int:
        """The number of this rank's host, an index of :attr:`hosts`."""
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

    # --- collectives ---------------------------------------------------------------------------------------

    def all_reduce(
        self,
        x: Array,
        op: str = "sum",
        *,
        out: Array | None = None,
        factor: float | None = None,
        algorithm: Algorithm = "auto",
        wire: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Array:
        """Combines every rank's x element by element; all ranks get the result, the same bits.

        Args:
            out: where the result goes, of x's size and dtype; None: into x.
            factor: with op "sum" and a float or complex dtype: every rank's values are multiplied by its own (real)
                factor first.

        Returns:
            out, or x.
        """
        if async_op is False and wire is None:
            handle = AUTO if algorithm == "auto" else self._handles.find("all_reduce", algorithm)
            try:
                self._fast_all_reduce(x, out, op, factor, handle, timeout, stream)
                return x if out is None else out
            except BufferError:
                pass
        return self._run(
            "all_reduce", x, x if out is None else out, op=op, factor=factor, algorithm=algorithm, wire=wire,
            timeout=timeout, async_op=async_op, stream=stream,
        )  # fmt: skip

    def reduce_scatter(
        self,
        x: Array,
        op: str = "sum",
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        factor: float | None = None,
        algorithm: Algorithm = "auto",
        wire: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Array:
        """Combines every rank's x; rank r gets the r-th block of rows (of the first axis) of the result.

        Args:
            out: this rank's block; None: a new array.
            counts: rows of each rank's block; None: equal blocks.
        """
        sizes = blocks.sizes(x, counts, self.size)
        if out is None:
            out = blocks.new_block(x, counts, self.size, self.rank)
        return self._run(
            "reduce_scatter", x, out, op=op, factor=factor,
            input_counts=sizes, algorithm=algorithm, wire=wire, timeout=timeout, async_op=async_op, stream=stream,
        )  # fmt: skip

    def all_gather(
        self,
        x: Array,
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm = "auto",
        wire: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Array:
        """Every rank gets all ranks' x, one behind the other along the first axis.

        Args:
            out: where they go; x may be this rank's own part of it. None: a new array.
            counts: rows of each rank's x; None: as many on every rank.
        """
        sizes = blocks.sizes(x, counts, self.size)
        if out is None:
            out = blocks.new_whole(x, counts, self.size)
        return self._run(
            "all_gather", x, out, input_counts=sizes, algorithm=algorithm, wire=wire, timeout=timeout,
            async_op=async_op, stream=stream,
        )  # fmt: skip

    def broadcast(
        self,
        x: Array,
        root: int = 0,
        *,
        algorithm: Algorithm = "auto",
        wire: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Array:
        """Every rank's x gets the root's values. Returns x."""
        return self._run(
            "broadcast", x, x, root=root, algorithm=algorithm, wire=wire, timeout=timeout, async_op=async_op,
            stream=stream,
        )  # fmt: skip

    def reduce(
        self,
        x: Array,
        root: int = 0,
        op: str = "sum",
        *,
        out: Array | None = None,
        factor: float | None = None,
        algorithm: Algorithm = "auto",
        wire: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Array | None:
        """Combines every rank's x; the root gets the result, in out or else in x. Others get None."""
        target = (x if out is None else out) if self.rank == root else None
        return self._run(
            "reduce", x, target, op=op, factor=factor, root=root,
            algorithm=algorithm, wire=wire, timeout=timeout, async_op=async_op, stream=stream,
        )  # fmt: skip

    def gather(
        self,
        x: Array,
        root: int = 0,
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm = "auto",
        wire: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Array | None:
        """The root gets all ranks' x, one behind the other along the first axis. Others get None.

        Args:
            out: where they go (looked at on the root only); None: a new array.
            counts: rows of each rank's x; None: as many on every rank.
        """
        sizes = blocks.sizes(x, counts, self.size)
        if self.rank != root:
            out = None
        elif out is None:
            out = blocks.new_whole(x, counts, self.size)
        return self._run(
            "gather", x, out, root=root, input_counts=sizes, algorithm=algorithm, wire=wire, timeout=timeout,
            async_op=async_op, stream=stream,
        )  # fmt: skip

    def scatter(
        self,
        x: Array | None = None,
        root: int = 0,
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm = "auto",
        wire: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Array:
        """Rank r gets the r-th block of rows (of the first axis) of the root's x.

        Args:
            x: looked at on the root only.
            out: this rank's block. Needed on all ranks but the root, which do not know its shape.
            counts: rows of each rank's block; None: equal blocks.
        """
        values.whole(root, "root", 0, self.size - 1, "a rank")
        if self.rank == root and x is None:
            raise ValueError("x is needed on the root")
        if out is None:
            if x is None or self.rank != root:
                raise ValueError("out is needed on every rank but the root")
            out = blocks.new_block(x, counts, self.size, self.rank)
        return self._run(
            "scatter", x if self.rank == root else None, out, root=root,
            input_counts=blocks.sizes(out, counts, self.size), algorithm=algorithm, wire=wire, timeout=timeout,
            async_op=async_op, stream=stream,
        )  # fmt: skip

    def all_to_all(
        self,
        x: Array,
        *,
        out: Array | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        algorithm: Algorithm = "auto",
        wire: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Array:
        """The r-th block of rows (of the first axis) of x goes to rank r; out gets one block from each rank.

        Args:
            out: where the blocks go, in rank order; may be x where the blocks are equal. None: a new array.
            send_counts, recv_counts: rows of the block to, and from, each rank; None: equal blocks.
        """
        if (send_counts is None) != (recv_counts is None):
            raise ValueError("send_counts and recv_counts go together")
        sent = blocks.sizes(x, send_counts, self.size, "send_counts")
        received = blocks.sizes(x, recv_counts, self.size, "recv_counts")
        if out is None:
            out = blocks.new_rows(x, arrays.rows(x) if recv_counts is None else sum(recv_counts))
        return self._run(
            "all_to_all", x, out, input_counts=sent, output_counts=received, algorithm=algorithm, wire=wire,
            timeout=timeout, async_op=async_op, stream=stream,
        )  # fmt: skip

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Work | None:
        """Returns on no rank before all ranks have called it."""
        work: Work | None = self._run("barrier", None, None, timeout=timeout, async_op=async_op)
        return work

    # --- point to point ------------------------------------------------------------------------------------

    def send(
        self,
        x: Array,
        dest: int,
        *,
        tag: int = 0,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Work | None:
        """Sends x to a rank, which must receive as many elements of the same dtype with the same tag.

        Returns when x may be changed again: for up to 64 KiB as a rule at once, before the other rank has asked
        for the message; for more when it has received it. Messages of one tag between two ranks are received
        in the order in which they were sent.

        Args:
            dest: a rank; this one too, which receives it by another call, now or later.
            tag: which receives may take the message: those of the same tag. A 32-bit integer.
            stream: of an array in GPU memory, which is copied to the CPU's first, when the stream has come so far.
        """
        x = staging.taken(arrays.contiguous(x), self._c, stream)
        work = self._c.transfer(True, x, dest, tag, timeout, async_op)
        return None if isinstance(work, int) else self._work(work, None, (x,), None)

    def recv(
        self,
        x: Array,
        source: int | None = None,
        *,
        tag: int = 0,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Array:
        """Receives the oldest message of this tag into x.

        Messages of other tags wait, and keep none behind them from being received. Of several receives that one
        message fits, the one that was called first gets it.

        Args:
            x: of as many elements as were sent, and of the same dtype.
            source: the rank that sends; None takes a message from any rank (this one included).
            tag: as in send.
            stream: in whose order an array in GPU memory gets what has come; by ``work.wait()`` if asynchronous.

        Returns:
            x; where source is None, x and the rank that it came from.

        Raises:
            MismatchError: the message has another number of elements or another dtype; on both ranks.
            PeerLost: the rank has closed its communicator or died. Without a source: any rank has died, or all
                others have closed theirs.
        """
        target = arrays.contiguous(x)
        if target is not x:
            arrays.check_writable(x, "x")
        room = staging.twin(target)
        work = self._c.transfer(False, room, source, tag, timeout, async_op)
        after = None if room is x else partial(self._put, room, target, x, stream)
        if not isinstance(work, int):
            return self._work(work, x, (room,), after, source is None)
        if after is not None:
            after()
        return (x, work) if source is None else x

    def _put(self, room: Array, target: Array, x: Array, stream: Stream) -> None:
        """What has come, where it was wanted: target is x or a packed copy, room is target or in the CPU's memory."""
        if room is not target:
            staging.give(room, target, self._c, stream)
        if target is not x:
            arrays.unpack(target, x)

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
        wire: str | None = None,
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

    # --- inside --------------------------------------------------------------------------------------------

    def _run(
        self,
        name: str,
        x: Array | None,
        out: Array | None,
        *,
        op: str = "sum",
        factor: float | None = None,
        root: int = 0,
        algorithm: Algorithm = "auto",
        wire: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
        input_counts: list[int] | None = None,
        output_counts: list[int] | None = None,
    ) -> Any:
        handle = self._handles.find(name, algorithm, root)
        source, target, after = x, out, None
        while True:
            try:
                work = self._c.collective(
                    name, source, target, op, factor, root, handle, timeout, input_counts, output_counts,
                    async_op, 0, 0, wire, stream,
                )  # fmt: skip
                break
            except BufferError:
                # An array is not contiguous: the engine gets packed copies, and out its values back.
                if source is not x or target is not out:
                    raise
                if out is not None:
                    arrays.check_writable(out, "x" if out is x else "out")
                same = source is target
                source = None if x is None else arrays.packed(x)
                target = source if same else None if out is None else arrays.packed(out)
                if target is not None and target is not out:
                    after = partial(arrays.unpack, target, out)
        if work is not None:
            return self._work(work, out, (source, target), after, stream=stream)
        if after is not None:
            after()
        return out

    def _work(
        self,
        engine: _engine.Work | _engine.GpuWork,
        result: Array,
        keep: tuple[Array, ...],
        after: Callable[[], None] | None,
        with_source: bool = False,
        stream: Stream = None,
    ) -> Work:
        # The engine writes to these arrays even if the caller forgets the handle.
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft()
        if isinstance(engine, _engine.GpuWork):
            work: Work = GpuWork(engine, result, keep, after, self._c.check, stream)
        else:
            work = Work(engine, result, keep, after, with_source)
        self._under_way.append(work)
        return work


@atexit.register
def _close_all() -> None:
    """Peers must learn that a rank has ended well, and not wait for it or think it died."""
    crashed = getattr(sys, "last_value", None) is not None  # set where an exception ends the interpreter
    for comm in list(_live):
        if crashed:
            comm._c.leave()
        else:
            comm.close()
