"""What README.md says of speed is what its tables show, and its rooms are the folders."""

import re
from pathlib import Path
from statistics import quantiles

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MPIS = ("Open MPI 5", "MPICH 5", "Intel MPI")


def ratios():
    """The times of the MPIs over ours, for each size of each table."""
    found = []
    for table in re.findall(r"<!-- all-reduce on \d ranks -->\n\n(.*?)\n\n", README, re.DOTALL):
        head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
        for row in rows:
            times = dict(zip(head, row, strict=True))
            found += [float(times[mpi]) / float(times["ringreduce"]) for mpi in MPIS]
    return found


def test_speed_is_what_the_tables_show():
    lower, _, upper = quantiles(ratios(), n=4)
    assert f"**All-reduce {lower:.0f} to {upper:.0f} times as fast as the MPIs" in README
    least, most = min(ratios()), max(ratios())
    measured = f"half lie between {lower:.1f} and {upper:.1f}, and all between {least:.1f} and {most:.1f}"
    assert measured in " ".join(README.split())


@pytest.mark.parametrize("wing", ["csrc", "ringreduce"])
def test_every_room_has_a_line(wing):
    table = README.split(f"| {wing}/ | contents |\n|---|---|\n")[1].split("\n\n")[0]
    folders = {path.parent for path in (ROOT / wing).glob("*/*") if path.suffix != ".pyc"}
    assert sorted(re.findall(r"^\| (\w+) \|", table, re.MULTILINE)) == sorted(one.name for one in folders)
