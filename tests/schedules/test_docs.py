"""docs/algorithms.md shows the catalogue as it is, and its example works."""

import re
from pathlib import Path

from ringreduce import schedules

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def test_table_is_current():
    shown = PAGE.split("<!-- table: begin -->\n")[1].split("\n<!-- table: end -->")[0]
    assert shown == schedules.table(), "run: python -m ringreduce.schedules, and put it between the markers"


def test_example_is_right_for_any_world():
    example = re.search(r"```python\n(.*?)```", PAGE, re.S)[1]
    names = {}
    exec(example, names)
    for world in range(1, 20):
        schedules.check(names["ring"], world=world)
    assert schedules.schedule("all_reduce", "my_ring", 3, 0) == names["ring"](3, 0)
