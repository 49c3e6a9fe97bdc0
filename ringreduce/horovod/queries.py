"""What this implementation is built with. Programs ask to choose their settings."""

from __future__ import annotations

__all__ = [
    "ccl_built", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rocm_built",
]  # fmt: skip


def mpi_threads_supported() -> bool:
    """Returns False: MPI is not used."""
    return False


def mpi_enabled() -> bool:
    """Returns False: operations do not run over MPI."""
    return False


def mpi_built() -> bool:
    """Returns False: operations do not run over MPI."""
    return False


def gloo_enabled() -> bool:
    """Returns False: operations do not run over Gloo."""
    return False


def gloo_built() -> bool:
    """Returns False: operations do not run over Gloo."""
    return False


def nccl_built() -> int:
    """Returns 0: operations do not run over NCCL."""
    return 0


def ddl_built() -> bool:
    """Returns False: operations do not run over IBM's DDL."""
    return False


def ccl_built() -> bool:
    """Returns False: operations do not run over oneCCL."""
    return False


def cuda_built() -> bool:
    """Returns False: tensors are in CPU memory."""
    return False


def rocm_built() -> bool:
    """Returns False: tensors are in CPU memory."""
    return False
