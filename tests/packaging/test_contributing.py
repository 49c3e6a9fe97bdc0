"""CONTRIBUTING.md names files that exist, and all those that an addition touches, by the example of one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = re.compile(r"`((?:csrc|ringreduce|tests|docs)/[\w./]+)`")
SECTIONS = re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", TEXT, re.MULTILINE | re.DOTALL)
HEADS = re.compile(r"^- (`[^:]*`):", re.MULTILINE)
LISTS = {
    title: (found[1], set(FILES.findall(" ".join(HEADS.findall(body)))))
    for title, body in SECTIONS
    if (found := re.search(r"<!-- every file with: (.*) -->", body))
}


def test_every_file_exists():
    assert [name for name in FILES.findall(TEXT) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("addition", LISTS)
def test_the_list_is_what_the_code_says(addition):
    pattern, listed = LISTS[addition]
    sources = [
        file for kind in ("cpp", "h", "cu", "cuh", "py") for wing in ("csrc", "ringreduce")
        for file in (ROOT / wing).rglob(f"*.{kind}")
    ]  # fmt: skip
    touched = {
        file.relative_to(ROOT).as_posix()
        for file in sources
        if re.search(pattern, file.read_text(encoding="utf-8"))
    }
    assert listed == touched
