"""The command line: ``python -m ringreduce.train``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from ringreduce.errors import RankFailed
from ringreduce.training.trainer.config import ConfigError, ToldError, add_flags, from_flags

DESCRIPTION = """\
Trains a small model on several ranks.

  python -m ringreduce.train --ranks 2 --plot loss.png         a GPT, on two new processes
  torchrun --nproc-per-node 2 -m ringreduce.train              on the ranks of torchrun (or mpirun or srun)
  python -m ringreduce.train --task digits --ranks 2           a convnet with batch norm over all ranks
  python -m ringreduce.train --config run.toml --steps 1000    settings from a file, overridden by flags
  python -m ringreduce.train --ranks 2 --efficiency            throughput of two ranks, compared with one
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the trainer, and returns the exit status: 2 for an invalid setting, 1 for a loss that is not finite."""
    parser = ArgumentParser(
        prog="python -m ringreduce.train",
        description=DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML or JSON")
    parser.add_argument("--print-config", action="store_true", help="print the settings as JSON, and exit")
    parser.add_argument("--efficiency", action="store_true", help="measure the scaling efficiency, and exit")
    add_flags(parser)
    options = parser.parse_args(arguments)
    try:
        config = from_flags(options)
        if options.print_config:
            print(json.dumps(config.model_dump(), indent=2))
            return 0
        # Imported late, because importing torch takes a second.
        from ringreduce.training.trainer.efficiency import measure, table
        from ringreduce.training.trainer.training_run import on_ranks, train

        if not options.efficiency:
            on_ranks(train, config)
        elif found := on_ranks(measure, config):
            print(table(found))
    except (ConfigError, FloatingPointError, RankFailed) as error:
        cause = error.__cause__ if isinstance(error, RankFailed) else error
        if not isinstance(cause, (ConfigError, FloatingPointError)):
            raise
        if not isinstance(error, ToldError):
            print(f"ringreduce.train: {cause}", file=sys.stderr)
        return 2 if isinstance(cause, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
