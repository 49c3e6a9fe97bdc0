"""Building and finding the native parts: libraries that are built on first use, CUDA, NCCL, MPI."""
