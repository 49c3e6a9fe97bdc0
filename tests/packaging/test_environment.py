"""The table of environment variables, the code that reads them and the page that lists them are one."""

import re
from pathlib import Path

from ringreduce import environment

ROOT = Path(__file__).resolve().parents[2]
TABLE = "ringreduce/environment.py"
MACROS = {"RINGREDUCE_TORCH_MODULE"}  # of the compiler


def read_by_code():
    """Whole strings that are names of ours, and where each is."""
    found = {}
    for folder, kinds in {"csrc": (".cpp", ".h", ".cu", ".cuh"), "ringreduce": (".py",)}.items():
        for file in sorted((ROOT / folder).rglob("*.*")):
            name = file.relative_to(ROOT).as_posix()
            if file.suffix not in kinds or name == TABLE:
                continue
            for variable in re.findall(r'"(RINGREDUCE_[A-Z_0-9]+)"', file.read_text(encoding="utf-8")):
                found.setdefault(variable, name)
    return {
        name: where
        for name, where in found.items()
        if name not in MACROS and not name.startswith(environment.OF_TESTS)
    }


def test_the_table_has_what_the_code_reads():
    assert {name: where for name, where in read_by_code().items() if name not in environment.by_name()} == {}


def test_the_code_reads_what_the_table_has():
    assert sorted(set(environment.by_name()) - set(read_by_code())) == []


def test_the_page_is_current():
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert page == environment.page(), "run: make docs/environment.md"


def test_the_page_links_to_headings_that_exist():
    for variable in environment.by_name().values():
        name, _, heading = variable.page.partition("#")
        if not name:
            continue
        titles = re.findall(r"^#+ (.*)$", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.M)
        assert heading in {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}, (
            variable
        )
