"""Processes that MPI spawns come into the group of those that have spawned them."""

from __future__ import annotations

import secrets

from tests.frameworks.mpi.conftest import PROGRAMS, ROOT


def test_spawned_newcomers(mpi):
    variables = {"PYTHONPATH": str(ROOT), "RINGREDUCE_TRANSPORT": "shm"}
    program = PROGRAMS / "spawning.py"
    words = (mpi.python, program, f"spawned/{secrets.token_hex(8)}")
    # Otherwise there are as many places as cores, and none for the newcomers.
    options = ("--host", "localhost:4", "--bind-to", "none") if mpi.vendor == "openmpi" else ()
    ended = mpi.run(2, *words, options=options, bound=False, **variables)
    assert ended.code == 0, ended.said + ended.errors
    assert sorted(ended.said.splitlines()) == [f"rank {rank} of 4: 4" for rank in range(4)], ended.errors
