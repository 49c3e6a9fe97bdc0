"""Training on ranks that may be lost and may come, without restarts: docs/elastic.md.

Needs torch.
"""

from ringreduce.elastic.checkpoints import CheckpointError, Checkpoints
from ringreduce.elastic.fully_shard import FullyShard
from ringreduce.elastic.loop import Step, steps
from ringreduce.elastic.losses import StateMismatch
from ringreduce.elastic.process_group import init_process_group
from ringreduce.elastic.start import start
from ringreduce.elastic.state import State
from ringreduce.sharded_optimizer.regroup import StateLost

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "FullyShard",
    "State",
    "StateLost",
    "StateMismatch",
    "Step",
    "init_process_group",
    "start",
    "steps",
]
