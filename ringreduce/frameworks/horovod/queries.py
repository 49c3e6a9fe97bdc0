"""What this implementation is built with. Programs ask to choose their settings."""

from __future__ import annotations

__all__ = [
    "ccl_built", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rocm_built",
]  # fmt: skip


def _no() -> bool:
    """Returns False: operations run over ringreduce, on tensors in CPU memory."""
    return False


ccl_built = cuda_built = ddl_built = gloo_built = gloo_enabled = mpi_built = mpi_enabled = _no
mpi_threads_supported = nccl_built = rocm_built = _no
