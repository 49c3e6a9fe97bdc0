"""Open MPI's mpirun (PRRTE)."""

from __future__ import annotations

from pathlib import Path

from ringreduce.start.launchers.launcher import Env
from ringreduce.start.launchers.mpirun import Mpirun

__all__ = ["OpenMpi"]


class OpenMpi(Mpirun):
    name, kind = "openmpi", "pmix"
    rank, sizes, here = "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_SIZE",)

    def job(self, env: Env) -> str:
        return env.get("PMIX_NAMESPACE", "")

    def is_live(self, env: Env) -> bool:
        folder = env.get("PMIX_SERVER_TMPDIR", "")
        return bool(env.get("PMIX_NAMESPACE")) and (not folder or Path(folder).is_dir())
