"""Measures how often a study declares a difference between an algorithm and itself.

Runs studies in which one algorithm competes under two names, together with another algorithm. By chance, one study in
twenty may separate the two names. If the studies separate the other algorithm from them, they are long enough to find
differences.

    python -m bench.engine.false_winners --studies 20 --budget 30
"""

from __future__ import annotations

from argparse import ArgumentParser
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from ringreduce.study import summaries, winners
from ringreduce.study.command import study
from ringreduce.study.folder import load
from ringreduce.study.plan import Competitor, Plan


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--budget", type=float, default=30, help="seconds for each study (30)")
    parser.add_argument("--algorithm", default="ring", help="algorithm that competes under two names (ring)")
    parser.add_argument("--other", default="one_shot", help="the other algorithm (one_shot)")
    parser.add_argument(
        "--folder", type=Path, help="folder to keep the studies in, and to continue them from"
    )
    options = parser.parse_args()
    names = {f"{options.algorithm} {n}" for n in (1, 2)}
    entries = [Competitor(name=options.algorithm, label=label) for label in sorted(names)]
    plan = Plan(
        algorithms=[*entries, Competitor(name=options.other)], sizes=[8, 64 << 10, 1 << 20],
        worlds=[2, 4], transports=["shm", "tcp"], budget_s=options.budget,
    )  # fmt: skip
    with TemporaryDirectory() as temporary:
        folders = [(options.folder or Path(temporary)) / str(n) for n in range(options.studies)]
        false = sum(declared(folder, plan, names) for folder in folders)
    print(f"{false} of {options.studies} studies declare a difference between the two names")
    return int(false > max(1, options.studies // 20))


def declared(folder: Path, plan: Plan, names: set[str]) -> bool:
    """Returns whether a study separates the two names in any cell."""
    with redirect_stdout(StringIO()):
        study(plan, folder, None)
    rows = load(folder).rows
    table = winners(rows, plan.difference)
    launches = summaries(rows).launches
    false = sum(len(names & set(tie)) == 1 for tie in table.winners)
    true = sum(len(tie) < 3 for tie in table.winners) - false
    print(
        f"{folder.name}: {launches.min()} to {launches.max()} launches; of {len(table)} cells, "
        f"{false} separate the names, {true} the other algorithm",
        flush=True,
    )
    return false > 0


if __name__ == "__main__":
    raise SystemExit(main())
