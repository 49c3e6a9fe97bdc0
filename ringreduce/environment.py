"""Every environment variable that ringreduce reads. docs/environment.md is made from this table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple, get_args

from ringreduce.annotations import Transport

__all__ = ["VARIABLES", "Variable", "check", "complaints", "page", "set_here"]

PREFIX = "RINGREDUCE_"
OF_TESTS = ("RINGREDUCE_EMULATED_", "RINGREDUCE_TEST_")
SECRET = "RINGREDUCE_SECRET"
FOLDER = "a folder"
TOLD = ("RINGREDUCE_TRANSPORT", "RINGREDUCE_TLS", "RINGREDUCE_TCP_CHECK")


class Variable(NamedTuple):
    """An environment variable: its values, its default, what it does, and the page that explains it.

    ``values`` are all that it can have, or a text that describes them.
    """

    name: str
    values: str | tuple[str, ...]
    default: str
    text: str
    page: str = ""


VARIABLES: dict[str, list[Variable]] = {
    "Starting and connecting": [
        Variable(
            "RINGREDUCE_RENDEZVOUS", "`host:port`, `host,host:port`", "the launcher's settings",
            "where ranks meet: a free port on rank 0's host, which may be any of several",
            "network.md#how-ranks-find-each-other",
        ),
        Variable(
            SECRET, "any text", "a secret that rank 0 makes, if MUNGE or the launcher can pass it on",
            "proves that a process belongs to the job; the TLS key is made from it",
            "network.md#how-ranks-find-each-other",
        ),
        Variable(
            "RINGREDUCE_NEWCOMER", "any text", "none",
            "the process takes the place of a lost rank: it must call `ringreduce.join()` or `elastic.start()`. "
            "`ringreduce run --restarts` sets it to a descriptor, through which `join()` reports that the rank has "
            "joined",
            "running.md#ranks-that-are-started-again",
        ),
        Variable(
            "RINGREDUCE_TRANSPORT", get_args(Transport), "`auto`",
            "how bytes travel, like `ringreduce.init(transport=...)`; `auto` is `shm+tcp`, or `shm+ofi` if faster",
            "network.md#settings",
        ),
        Variable(
            "RINGREDUCE_IFACE", "an interface, such as `eth0`", "all interfaces that other hosts can reach",
            "the network interface to listen on", "network.md#settings",
        ),
        Variable(
            "RINGREDUCE_HOST", "any text", "the machine's own identity",
            "a name for this host: ranks with different names do not share memory", "network.md#settings",
        ),
        Variable(
            "RINGREDUCE_TLS", ("0", "1"), "`0`",
            "encrypts all sockets, like `ringreduce.init(encrypt=True)`", "network.md#encryption",
        ),
        Variable(
            "RINGREDUCE_TCP_CHECK", ("0", "1"), "`0`", "adds a checksum to every frame, over sockets and fabrics",
            "network.md#bytes-that-change-on-the-way",
        ),
        Variable(
            "RINGREDUCE_TCP_STREAMS", "`auto`, 1 to 64", "`auto`", "the number of connections of each pair of ranks",
            "network.md#settings",
        ),
        Variable(
            "RINGREDUCE_OFI_PROVIDER", "a provider, such as `verbs;ofi_rxm`", "the first that reaches a card",
            "the provider of libfabric under the transports `ofi` and `shm+ofi`; `fi_info` lists them",
            "network.md#fabrics",
        ),
        Variable(
            "RINGREDUCE_OFI_DOMAIN", "a domain, or several, such as `mlx5_0,mlx5_2`", "all that reach a card",
            "the domains of the provider, usually network cards, that the ranks of a host share", "network.md#fabrics",
        ),
        Variable(
            "RINGREDUCE_OFI_RMA", ("auto", "0", "1"), "`auto`",
            "whether ranks read large messages remotely, under the transports `ofi` and `shm+ofi`; `auto`: not over "
            "sockets", "network.md#fabrics",
        ),
        Variable(
            "RINGREDUCE_LINKS", ("auto", "off"), "`auto`",
            "whether the links between hosts are measured when ranks meet", "network.md#links-of-different-speed",
        ),
    ],
    "Choosing what runs": [
        Variable(
            "RINGREDUCE_ALGORITHM", "an algorithm, or a list such as `all_reduce=ring,broadcast=chain`", "`auto`",
            "what calls with `algorithm=\"auto\"` run: one name for all collectives that have an algorithm of that "
            "name, or a name for each collective", "algorithms.md#the-catalogue",
        ),
        Variable(
            "RINGREDUCE_NUMPY_MEMORY", ("moving", "ordinary"), "`moving`",
            "where NumPy arrays of at least 256 KiB lie that the thread makes after `init()`: in memory that moves to "
            "where the other ranks of the host read it in place once it is communicated repeatedly, or in ordinary "
            "memory", "api.md#arrays-in-shared-memory",
        ),
        Variable(
            "RINGREDUCE_TUNING", "a file, `off`", "the table that `ringreduce tune` wrote to the cache",
            "the table that `auto` looks up before the shipped ones", "studies.md#tuning",
        ),
        Variable(
            "RINGREDUCE_REPRODUCIBLE", ("0", "1"), "`0`",
            "makes reductions add in rank order, like `ringreduce.init(reproducible=True)`",
            "algorithms.md#reproducible-results",
        ),
        Variable(
            "RINGREDUCE_ISA", "`avx512`, `avx2`, `plain` (x86-64); `neon_bf16`, `neon` (arm64)",
            "the fastest that the CPU supports",
            "the instruction set that reductions use; all give the same bits",
        ),
    ],
    "torch": [
        Variable(
            "RINGREDUCE_AS", ("gloo",), "nothing",
            "serves what a program asks torch.distributed's Gloo for; the same on all ranks",
            "torch.md#programs-that-ask-for-gloo",
        ),
        Variable(
            "RINGREDUCE_TORCH_MEMORY", ("moving", "ordinary"), "`moving`",
            "where CPU tensors of at least 256 KiB lie that are made after `init_process_group` or `hvd.init`: in "
            "memory that moves to where the other ranks of the host read it in place once it is communicated "
            "repeatedly, or in ordinary memory", "torch.md#memory-of-tensors",
        ),
    ],
    "Looking inside": [
        Variable(
            "RINGREDUCE_LOG", ("info", "debug"), "Python's logging decides",
            "writes to standard error what ranks chose, and for which ranks they wait",
        ),
        Variable(
            "RINGREDUCE_REPORT", "`exit`, `signal`, `answer`, or several of them, separated by commas", "none",
            "reports of every rank: its statistics at its end, what it does on SIGUSR1, its Python stack for "
            "`ringreduce diagnose`", "diagnosing.md#reports",
        ),
        Variable(
            "RINGREDUCE_METRICS", "a port, `address:port`", "none",
            "serves metrics by HTTP, at this port plus the rank", "diagnosing.md#metrics",
        ),
        Variable(
            "RINGREDUCE_METRICS_FILE", "a file; `{rank}` stands for the rank", "none",
            "where metrics are written every 10 seconds and at the end", "diagnosing.md#metrics",
        ),
    ],
    "GPUs": [
        Variable(
            "RINGREDUCE_GPU_TRANSPORT", ("auto", "cuda", "nccl"), "`auto`",
            "what moves arrays in GPU memory: NCCL, or kernels inside a host and the CPU between hosts",
            "gpu.md#over-nccl",
        ),
        Variable(
            "RINGREDUCE_CUDA_HANDLES", ("auto", "ipc", "fabric", "file"), "`auto`",
            "how processes reach each other's GPU memory", "gpu.md#ranks-and-cards",
        ),
        Variable(
            "RINGREDUCE_CUDA_LIBRARY", "a file", "`libringreduce_cuda.so` beside the engine",
            "the library that holds the GPU code", "gpu.md#building",
        ),
        Variable(
            "RINGREDUCE_NCCL_LIBRARY", "a file", "the one that the loader finds or pip installed",
            "NCCL's `libnccl.so.2`", "gpu.md#over-nccl",
        ),
    ],
    "MPI programs, builds and benchmarks": [
        Variable(
            "RINGREDUCE_MPI", "`auto`, `all`, `off`", "`auto`",
            "which calls the interposer serves; any other value means `off`",
            "mpi.md#speed-up-a-program-that-exists",
        ),
        Variable(
            "RINGREDUCE_MPI_COUNT", ("0", "1", "all"), "`0`",
            "whether rank 0 (`1`) or every rank (`all`) reports at the end how many calls the interposer served",
            "mpi.md#speed-up-a-program-that-exists",
        ),
        Variable(
            "RINGREDUCE_CACHE", FOLDER, "`$XDG_CACHE_HOME/ringreduce`, or `~/.cache/ringreduce`",
            "where libraries built on first use, tuning tables and models are kept", "torch.md#how-it-is-built",
        ),
        Variable(
            "RINGREDUCE_BENCH_MPI", "folders, separated by `:`", "none",
            "installations of further MPIs that `ringreduce bench` compares ringreduce with",
        ),
    ],
}  # fmt: skip

OTHERS = """\
## Variables that others define

Launchers set the variables that tell a process its rank: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` and others
of torchrun, `OMPI_*` and `PMIX_*` of Open MPI, `PMI_*` of MPICH and Intel MPI, `SLURM_*` of Slurm. ringreduce also
reads `XDG_CACHE_HOME` and `HOME` (for its cache), `CXX` and `CXXFLAGS` (for what it builds on first use), `MPICC` (the
MPI to build for), `HOROVOD_*` under [Horovod's API](frameworks.md#horovod), and `CUDA_DEVICE_MAX_CONNECTIONS`. If
several ranks of a process share a GPU, it sets that to 32, and `CUDA_MODULE_LOADING` to `EAGER`.
"""

LOG = """\
## The log

    $ RINGREDUCE_LOG=info ringreduce run -n 2 --hosts node0,node1 train.py
    ringreduce[rank 0] info: 4 ranks, started by torchrun, meet at tcp://node0:29400
    ringreduce[rank 0] info: listens on 10.0.0.1:45301 (eth0), 127.0.0.1:44399 (lo); messages are plain
    ringreduce[rank 2] info: listens on 10.0.0.2:55169 (eth0), 127.0.0.1:49327 (lo); messages are plain
    ringreduce[rank 0] info: a group of 4 ranks over shm+tcp on 2 hosts (ranks 0-1; 2-3)
    ringreduce[rank 0] info: links between hosts: up to 27.6 us, 120 to 121 MB/s
    ringreduce[rank 0] info: reductions use avx512; algorithms are chosen from the shipped tables
    ringreduce[rank 0] info: all_reduce: recursive_doubling up to 4 KiB, two_level above
    ringreduce[rank 0] info: reduce_scatter, all_gather: direct up to 256 KiB, ring above
    ...

Rank 0 logs what all ranks have in common. The first rank of each host logs how others reach it. While ranks meet, rank
0 logs which ranks are missing, after 5 seconds and then at growing intervals. Every rank logs how its group failed.
With `debug` every rank logs everything, and a rank that waits for another for more than a second logs which one, and in
which call. "rank 3/1" is rank 3 of the job, which is rank 1 of a group that was made from it.

Without the variable, Python's logging decides: the loggers are `ringreduce.engine`, `ringreduce.meeting` and
`ringreduce.environment`. Configure them before the first communicator is made:

    logging.basicConfig(level=logging.INFO)
    comm = ringreduce.init()

Only threads that connect, or that wait anyway, write lines. A small message costs the same with and without the log.
"""


def by_name() -> dict[str, Variable]:
    return {variable.name: variable for group in VARIABLES.values() for variable in group}


def check(environment: Mapping[str, str], alone: bool = True) -> None:
    """Raises ValueError if a variable has none of its values, also one that nothing reads here. An empty one is unset.

    Other values are checked where they are read. So are those that ranks tell each other when they connect, unless a
    rank is ``alone``: every rank then raises the error.
    """
    for name, variable in by_name().items():
        value, values = environment.get(name), variable.values
        if not value or (name in TOLD and not alone):
            continue
        if isinstance(values, tuple) and value not in values:
            raise ValueError(
                f"{name} must be {' or '.join(filter(None, [', '.join(values[:-1]), values[-1]]))}, not {value!r}"
            )
        if values == FOLDER and os.path.exists(value) and not os.path.isdir(value):
            raise ValueError(f"{name} must be a folder, not {value!r}")
        if name == "RINGREDUCE_CUDA_LIBRARY" and not os.path.isfile(value):
            raise ValueError(f"{name} must be a file, not {value!r}")


def complaints(environment: Mapping[str, str]) -> list[str]:
    """Returns a warning for each variable with our prefix that is not in the table: it may be misspelt."""
    known = by_name()
    unknown = [
        name
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in known and not name.startswith(OF_TESTS)
    ]
    if not unknown:
        return []
    import difflib  # takes milliseconds, and few processes need it

    endings = [name.removeprefix(PREFIX) for name in known]
    found = []
    for name in unknown:
        likely = difflib.get_close_matches(name.removeprefix(PREFIX), endings, 1, 0.75)
        hint = (
            f"did you mean {PREFIX}{likely[0]}?"
            if likely
            else "docs/environment.md lists those that it reads"
        )
        found.append(f"the environment sets {name}, which ringreduce does not read: {hint}")
    return found


def set_here(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of ringreduce that are set. The value of the secret is hidden."""
    ours = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
    return {name: "(hidden)" if name == SECRET else value for name, value in sorted(ours.items())}


def page() -> str:
    """Returns the text of docs/environment.md."""
    parts = [
        "# Environment variables\n",
        "Made from `ringreduce/environment.py` by `make docs/environment.md`.\n",
        "Variables that concern a communicator are read when it is made. Set them to the same values on all ranks,",
        "except `RINGREDUCE_HOST` and `RINGREDUCE_IFACE`. An empty variable counts as unset. An invalid value raises",
        "an error that names the variable, and an unknown `RINGREDUCE_` variable causes a warning. `ringreduce env`",
        "lists the variables that are set.\n",
    ]
    for title, variables in VARIABLES.items():
        parts += [f"## {title}\n", "| variable | values | default | |", "|---|---|---|---|"]
        for one in variables:
            more = f" ([{one.page.partition('.md')[0]}]({one.page}))" if one.page else ""
            values = (
                one.values if isinstance(one.values, str) else ", ".join(f"`{value}`" for value in one.values)
            )
            parts.append(f"| `{one.name}` | {values} | {one.default} | {one.text}{more} |")
        parts.append("")
    return "\n".join(parts) + "\n" + LOG + "\n" + OTHERS


if __name__ == "__main__":
    print(page(), end="")
