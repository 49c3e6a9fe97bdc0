"""Horovod's elastic training is not there: importing this module says so."""

raise ImportError(
    "ringreduce has no horovod.torch.elastic. When a rank is lost, start the job anew from a checkpoint, for example "
    "with torchrun --max-restarts (docs/torch.md), or call ringreduce.Communicator.shrink() (docs/reliability.md)"
)
