"""Compression of torch's tensors before an all-reduce."""

import torch

from ringreduce.frameworks.horovod.compression import Compressor, compressions

__all__ = ["Compression", "Compressor"]

Compression = compressions(torch.is_floating_point, torch.Tensor.to, torch.float16)
FP16Compressor = Compression.fp16
