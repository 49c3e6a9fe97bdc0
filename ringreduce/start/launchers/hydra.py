"""Hydra, the mpirun of MPICH and Intel MPI, and what sets its variables: PALS and Flux."""

from __future__ import annotations

from ringreduce.start.launchers.launcher import Env
from ringreduce.start.launchers.mpirun import Mpirun, ancestors_named
from ringreduce.start.launchers.slurm import is_of_a_step
from ringreduce.start.orphans import ancestors

__all__ = ["Hydra"]


class Hydra(Mpirun):
    name, kind = "hydra", "pmi"
    rank, sizes = "PMI_RANK", ("PMI_SIZE",)
    here, hosts = ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"), ("FLUX_JOB_NNODES",)  # the second of PALS

    def has_started(self, env: Env) -> bool:
        """srun --mpi=pmi2 sets some of Hydra's variables. Processes that Hydra starts through srun have Slurm's."""
        return "MPI_LOCALNRANKS" in env or not is_of_a_step(env)

    def job(self, env: Env) -> str:
        """Hydra does not name its jobs, but its proxy starts all ranks of a host."""
        return env.get("PMI_PORT") or str(next(iter(ancestors_named("hydra") or ancestors()), 0))

    def is_live(self, env: Env) -> bool:
        return bool(env.get("PALS_APID") or env.get("FLUX_JOB_ID")) or self.space().is_there()
