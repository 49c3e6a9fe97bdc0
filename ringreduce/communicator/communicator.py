"""The communicator: its ranks and hosts, its groups, and its choices."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ringreduce import _engine, log
from ringreduce._engine import values
from ringreduce.annotations import Array, Op, Wire
from ringreduce.communicator import objects
from ringreduce.communicator import statistics as counts
from ringreduce.communicator.base import DEFAULT_TIMEOUT
from ringreduce.communicator.choice import Choice, TimeModel
from ringreduce.communicator.collectives import Collectives
from ringreduce.communicator.groups import Groups, Growth
from ringreduce.communicator.links import Links
from ringreduce.communicator.messages import Messages
from ringreduce.communicator.statistics import GroupStatistics, Statistics
from ringreduce.communicator.synthesis import DescribedNetwork, Synthesis, of_ranks
from ringreduce.living import Living

__all__ = ["Communicator"]

T = TypeVar("T")

_live: Living[Communicator] = Living()


class Communicator(Collectives, Messages, Groups):
    """A group of ranks, of which this process (or thread) is one.

    All ranks of the group must call every collective, in the same order, with arrays of the same dtype and the same
    number of elements. Only calls with ``counts`` take different numbers of elements. Common arguments:

    - ``x``: a NumPy array, a torch tensor, or any object that supports DLPack or the buffer protocol. Its dtype is
      float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int64, int32, int16, int8, uint64, uint32,
      uint16, uint8, bool, complex64 or complex128. It may have any shape, including zero-size and zero-dimensional
      ones. Arrays that are not contiguous cost a copy.
    - ``op``: "sum", "avg", "prod", "min" or "max"; for integers and bool also "band", "bor" or "bxor". bool has no
      "avg", and complex numbers have only "sum", "avg" and "prod". 16-bit and 8-bit floats are accumulated in float32
      at each combination. :func:`ringreduce.op` makes others.
    - ``algorithm``: "auto", a name from :func:`ringreduce.algorithms`, the name of a registered algorithm, or a
      function ``(world, rank) -> Schedule``. For arrays in GPU memory also "nccl", for NCCL's own algorithms.
    - ``wire``: the format in which values travel. "bf16" and "fp16" halve the bytes of float32. "int8" and "fp8"
      (e4m3) send float32, float16 and bfloat16 in about one byte per value, with a scale for every 256 values. None
      sends values unchanged. Received values are combined in float32, and 16-bit results are rounded once, at the
      end. All ranks still get the same bits, so all_gather and broadcast also round the values that a rank
      contributes itself (the root's x too). docs/accuracy.md lists the errors.
    - ``timeout``: seconds. None takes the communicator's timeout.
    - ``async_op``: hands the call to the progress thread and returns a :class:`Work` at once. For arrays in GPU
      memory, it puts the call on :attr:`device_stream`, after the work that is already on ``stream``;
      ``work.wait()`` makes the stream wait.
    - ``stream``: for arrays in GPU memory, see below.

    Collectives also take arrays in GPU memory: torch CUDA tensors, and objects that have a
    ``__cuda_array_interface__`` (such as CuPy arrays) or support DLPack. Kernels serve up to 32 ranks of one host,
    NCCL or the CPU's collectives any others. A collective is launched on a stream, runs in order with the stream's
    other work, and the call returns at once. ``stream`` is a handle, a torch or CuPy stream, or any object with
    ``__cuda_stream__``.
    None takes the current stream of torch or CuPy, and for other arrays :attr:`device_stream`. :meth:`send` and
    :meth:`recv` copy them through CPU memory. Calls can be captured into CUDA graphs. All arrays of a rank must be on
    one GPU. An error that occurs while kernels run is raised by a later call. docs/gpu.md has details.

    Collectives raise ValueError or TypeError for invalid arguments, before they do anything. They raise
    :class:`~ringreduce.errors.PeerLost`, :class:`~ringreduce.errors.MismatchError` or
    :class:`~ringreduce.errors.TimeoutError` if the group cannot continue. Several threads may call a communicator;
    the calls run one after another.
    """

    def __init__(
        self,
        engine: _engine.Communicator,
        timeout: float = DEFAULT_TIMEOUT,
        new_growth: Callable[[], Growth] | None = None,
        growth: Growth | None = None,
    ) -> None:
        super().__init__(engine, timeout, new_growth, growth)
        self._link_names: list[str] | None = None
        self._counted_before: Statistics | None = None
        _live.add(self)

    def __repr__(self) -> str:
        return f"<ringreduce.Communicator rank {self.rank} of {self.size} over {self.transport}>"

    @property
    def transport(self) -> str:
        """The transport in use, by its name in :func:`ringreduce.init`.

        It may be simpler than the one requested in :func:`ringreduce.init`. For example, "auto" and "shm+tcp" become
        "shm" if all ranks share a host. Groups made by :func:`ringreduce.local_group` use "local".
        """
        return self._c.transport

    @property
    def reproducible(self) -> bool:
        """Whether each element of a reduction's result depends only on the ranks' values of that element.

        If True, reductions and scans compute ((r0 + r1) + r2) + ... in rank order. 16-bit and 8-bit
        floats are added in float32 and rounded once, at the end. The bits then do not depend on the tensor's size, the
        element's place, the algorithm, the transport or the kind of memory. Algorithms that add in another order raise
        ValueError. Groups made by :meth:`split` and :meth:`shrink` inherit the setting.
        """
        return self._c.reproducible

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host, from 0. Use it to pick a GPU."""
        return self.hosts[self.host].index(self.rank)

    @property
    def local_size(self) -> int:
        """The number of ranks on this rank's host, including this rank. Use it to divide the host's cores."""
        return len(self.hosts[self.host])

    @property
    def host(self) -> int:
        """The number of this rank's host: an index into :attr:`hosts`, sometimes called the node rank."""
        return next(i for i, ranks in enumerate(self.hosts) if self.rank in ranks)

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host. Hosts are ordered by their first rank.

        Containers on one host count as several hosts if RINGREDUCE_HOST names them differently.
        """
        return self._handles.hosts()

    @property
    def device_stream(self) -> int:
        """The handle of this rank's own CUDA stream, unordered with all others. 0 before the first use of a GPU."""
        return self._c.device_stream

    @property
    def device_memory_held(self) -> int:
        """The bytes of GPU memory that this rank holds for the group."""
        return self._c.device_footprint

    @property
    def memory_held(self) -> int:
        """The bytes of memory that this rank holds for the group."""
        return self._c.footprint

    # --- objects -------------------------------------------------------------------------------------------

    def all_gather_object(self, obj: T, *, timeout: float | None = None) -> list[T]:
        """Collects all ranks' objects. Every rank gets copies of them, in rank order.

        Objects are pickled, and may differ in type and size. Unpickling runs code that the sender chooses, so ranks
        must trust each other, as the ranks of one user's job do.

        Returns:
            A list of ``size`` objects.

        Raises:
            ValueError: a rank's object cannot be pickled. Every rank raises the error, and the group stays usable. Or
                an object that another rank sent cannot be unpickled on this rank.
        """
        return objects.all_gather(self, obj, timeout)

    def broadcast_object(self, obj: Any = None, root: int = 0, *, timeout: float | None = None) -> Any:
        """Sends the root's object to all ranks. See :meth:`all_gather_object` about pickling and errors.

        Args:
            obj: the object to send. Ignored on all ranks but the root.

        Returns:
            A copy of the root's object; on the root, the object itself.
        """
        return objects.broadcast(self, obj, root, timeout)

    def gather_object(self, obj: T, root: int = 0, *, timeout: float | None = None) -> list[T] | None:
        """Collects all ranks' objects on the root. See :meth:`all_gather_object` about pickling and errors.

        Returns:
            On the root, copies of all ranks' objects in rank order. None on all other ranks.
        """
        return objects.gather(self, obj, root, timeout)

    def scatter_object(
        self, objs: Sequence[Any] | None = None, root: int = 0, *, timeout: float | None = None
    ) -> Any:
        """Sends rank r the root's r-th object. See :meth:`all_gather_object` about pickling and errors.

        Args:
            objs: one object for each rank. Ignored on all ranks but the root.

        Returns:
            A copy of this rank's object; on the root, the object itself.
        """
        return objects.scatter(self, objs, root, timeout)

    # --- links ---------------------------------------------------------------------------------------------

    def measure_links(self) -> Links:
        """Measures the latency and bandwidth between all pairs of hosts, and uses the results.

        If all ranks share a host, it measures between pairs of ranks. Afterwards rings and chains visit the ranks in
        the fastest order, and ``algorithm="auto"`` prefers few rounds where latency dominates. Ranks on several hosts
        measure their links when they meet, unless RINGREDUCE_LINKS is "off"; with more than 16 hosts, they measure
        only some pairs. Every rank must call this method, while no other call is in progress. Groups made by
        :meth:`split` and :meth:`shrink` inherit the results.
        """
        self._c.measure_links()
        return Links(self._c.links, self._c.ring_order)

    @property
    def links(self) -> Links | None:
        """The measured links between hosts, or None if they were not measured."""
        found = self._c.links
        return Links(found, self._c.ring_order) if found.world else None

    def synthesise(self, network: DescribedNetwork | None = None) -> Synthesis:
        """Makes the all-reduces that ``algorithm="synthesised"`` runs, for the network between these ranks.

        Every rank must call it, while no other call is in progress. If the links are known, the first call with
        ``algorithm="synthesised"`` calls it. Groups made by :meth:`split` and :meth:`shrink` need a synthesis of their
        own.

        Args:
            network: a description of the network, the same on all ranks. None measures it: all pairs of hosts send to
                each other at the same time, because only then do shared links show.

        Raises:
            ValueError: the network has a different number of ranks, or is not connected.
        """
        if network is None:
            self._link_names = None
            self._c.synthesise()
        else:
            made, world, names = network.engine_synthesis()
            if world != self.size:
                raise ValueError(f"network has {world} ranks, but the communicator has {self.size}")
            self._c.synthesise_for(made)
            self._link_names = names
        found = self.synthesis
        assert found is not None
        return found

    @property
    def synthesis(self) -> Synthesis | None:
        """The result of :meth:`synthesise`, or None if it has not been called."""
        return of_ranks(self._c, self._link_names)

    def explain(
        self,
        nbytes: int,
        collective: str = "all_reduce",
        wire: Wire | None = None,
        model: TimeModel | None = None,
        op: Op = "sum",
    ) -> Choice:
        """Says which algorithm ``algorithm="auto"`` picks, and why.

        Args:
            nbytes: the size of the whole buffer (all ranks' blocks together). With ``wire``, count four bytes for each
                value, whatever the dtype.
            collective: the name of a collective, such as "all_reduce".
            wire: the format in which values travel, as for the collectives.
            model: predicts the time of each algorithm and its parts; see :mod:`ringreduce.model`.
            op: how values are combined. Only an operator that does not commute changes the choice.

        Raises:
            ValueError: there is no such collective, or the model does not cover messages that these ranks send.
        """
        choice = self._c.explain(collective, nbytes, wire, getattr(op, "commutative", True))
        if model is None:
            return Choice(*choice, self._c.fabric)
        each = {len(ranks) for ranks in self.hosts}
        if len(each) > 1:
            raise ValueError("model needs the same number of ranks on every host")
        return Choice(*choice, self._c.fabric, model.ranking(nbytes, self.size, collective, each.pop()))

    def statistics(self) -> Statistics:
        """Returns the statistics of this rank's calls since the group was made, or since :meth:`reset_statistics`.

        They count calls and bytes by collective and algorithm, and the time that this rank waited for each other rank.
        :meth:`split` makes collectives of the group it is called on, and so do the first calls with arrays on a GPU.
        """
        found = counts.of_engine(self._c.statistics())
        return found if self._counted_before is None else found.since(self._counted_before)

    def all_gather_statistics(self, *, timeout: float | None = None) -> GroupStatistics:
        """Collects the statistics of all ranks, which show which rank comes late. Every rank must call it.

        The calls that collect them are not counted in the result.
        """
        return GroupStatistics(self.all_gather_object(self.statistics(), timeout=timeout))

    def reset_statistics(self) -> None:
        """Lets :meth:`statistics` count from now on. Affects only this rank, and no metrics."""
        self._c.forget_longest_waits()
        self._counted_before = counts.of_engine(self._c.statistics())

    def close(self) -> None:
        """Waits for calls in progress, then leaves the group. Calling it again does nothing."""
        self._close_door()
        self._c.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # peers may never make the calls that are in progress
            self._close_door()
            self._c.leave()

    def prepare(self, device: int) -> None:
        """Meets the other ranks on this rank's GPU now, and prepares messages without a tag.

        Kernels carry them, for which it sets some of the GPU's thread blocks aside, or NCCL. Every rank must call it.
        The first collective of arrays in GPU memory meets the others too, but prepares no messages.
        :func:`ringreduce.local_group` prepares the devices that it is given.

        Args:
            device: the number of the GPU that holds all of this rank's arrays.

        Raises:
            Error: on all ranks, if a rank has no such GPU, or it cannot reach the others'.
        """
        self._c.prepare_device(values.whole(device, "device"))

    def register(self, x: Array) -> None:
        """Registers the GPU memory of x on all ranks, so that calls can use it in place. Every rank must call it.

        Ranks that are processes map each other's memory in this call, and not some time after its first use. Groups
        with ``max_blocks=0`` copy between registered arrays without thread blocks (docs/gpu.md). NCCL gets the memory
        too, if it serves the group. The registration ends with :meth:`deregister`, or with the group.

        Args:
            x: an array in GPU memory, of as many bytes on all ranks. It is known by the address of its first byte.

        Raises:
            ValueError: on all ranks, if x is empty, registered already or of another length on some rank.
            Error: on all ranks, if the memory of some rank cannot be shared.
        """
        self._c.register_memory(x)

    def deregister(self, x: Array) -> None:
        """Ends the registration of x by :meth:`register`. Every rank must call it, before any frees its memory."""
        self._c.deregister_memory(x)


@atexit.register
def _close_all() -> None:
    """Tells peers that this rank has ended normally: they must not wait for it, nor take it for dead."""
    crashed = getattr(sys, "last_value", None) is not None  # set if an exception ends the interpreter
    for comm in _live:
        if crashed:
            comm._c.leave()
        else:
            comm.close()
    log.drain()
