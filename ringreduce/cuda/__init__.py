"""The libraries behind GPUs: CUDA's driver, our own kernels, and NCCL."""
