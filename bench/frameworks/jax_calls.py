"""Compares all-reduces inside jax.jit with mpi4jax over Open MPI and MPICH, in turns.

    make jax-peers && .venv/bin/python -m pip install jax
    .venv/bin/python -m bench.frameworks.jax_calls --ranks 2 --launches 3

"call" is a program of one all-reduce, with JAX's own time to start it. "loop" is one of 100 calls in a program with a
loop. Every rank has a core of its own. Times are medians of the slowest rank's times.
"""

from __future__ import annotations

from pathlib import Path

from bench.frameworks.calls import OURS, compare, ours, parse_arguments
from ringreduce.bench.mpi import environment, launcher

ROOT = Path(__file__).resolve().parents[2]
PEERS = {f"mpi4jax, {name}": vendor for name, vendor in (("Open MPI", "openmpi"), ("MPICH", "mpich"))}
SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 32 << 20)
RANK = ("-m", "bench.frameworks.jax_rank")


def command(name: str, ranks: int) -> tuple[list[str], dict[str, str]]:
    if name == OURS:
        return ours(ranks, *RANK, "ringreduce"), {}
    home = ROOT / f".venv-jax-{PEERS[name]}"
    start = launcher(PEERS[name], home / "bin" / "mpirun", ranks)
    return [*start, str(home / "bin" / "python"), *RANK, "mpi4jax"], environment(PEERS[name], home, ranks)


def main() -> None:
    there = [name for name in PEERS if (ROOT / f".venv-jax-{PEERS[name]}" / ".ready").exists()]
    compare("jax.jit", there, command, parse_arguments(__doc__, SIZES))


if __name__ == "__main__":
    main()
