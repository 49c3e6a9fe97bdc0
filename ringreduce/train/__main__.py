"""The command line: ``python -m ringreduce.train``."""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from ringreduce.errors import RankFailed
from ringreduce.plotting import PlotError, pyplot
from ringreduce.train.config import ConfigError, add_flags, from_flags

DESCRIPTION = """\
Trains a small model on several ranks.

  python -m ringreduce.train --ranks 2 --plot loss.png         a GPT, on two processes of its own
  torchrun --nproc-per-node 2 -m ringreduce.train              on a launcher's; mpirun and srun do as well
  python -m ringreduce.train --task digits --ranks 2           a convnet with batch norm over all ranks
  python -m ringreduce.train --config run.toml --steps 1000    settings from a file, and flags over them
  python -m ringreduce.train --ranks 2 --efficiency            how well N ranks are used, beside one
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status; 2 for a bad setting."""
    parser = ArgumentParser(
        prog="python -m ringreduce.train",
        description=DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML or JSON")
    parser.add_argument("--print-config", action="store_true", help="print the settings as JSON, and end")
    parser.add_argument("--efficiency", action="store_true", help="measure the scaling efficiency, and end")
    add_flags(parser)
    options = parser.parse_args(arguments)
    try:
        config = from_flags(options, options.config)
        if options.print_config:
            print(json.dumps(dataclasses.asdict(config), indent=2))
            return 0
        if config.plot:
            pyplot()  # before minutes are spent on what cannot be shown then
        # Only now: torch takes a second to import.
        from ringreduce.train.efficiency import measure, table
        from ringreduce.train.processes import on_ranks
        from ringreduce.train.run import train

        if options.efficiency:
            found = on_ranks(measure, config)
            if found is not None:
                print(table(found))
        else:
            on_ranks(train, config)
    except (ConfigError, PlotError) as error:
        return _refuse(str(error))
    except RankFailed as error:
        if isinstance(error.__cause__, ConfigError):
            return _refuse(str(error.__cause__))
        raise
    return 0


def _refuse(text: str) -> int:
    print(f"ringreduce.train: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
