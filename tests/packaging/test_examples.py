"""What the documentation shows runs, each example in a fresh interpreter."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ringreduce

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300  # seconds; an example takes a few, and training ones import torch on each of their ranks
FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, match in enumerate(FENCED.finditer(page.read_text())):
            marks = [] if page.name == "README.md" else [pytest.mark.slow]
            yield pytest.param(match[1], id=f"{page.name}-{number}", marks=marks)


@pytest.mark.timeout(PATIENCE + 30)
@pytest.mark.parametrize("code", list(examples()))
def test_example_runs(code, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(code)
    run = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr


def test_readme_prints_what_it_says():
    codes = [match[1] for match in FENCED.finditer((ROOT / "README.md").read_text())]
    code = next(code for code in codes if "two processes: " in code)
    promised = re.search(r"two processes: (.*)", code)[1]
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert run.stdout.strip() == promised, run.stderr


def test_doctest_of_the_package():
    result = doctest.testmod(ringreduce)
    assert result.attempted > 0
    assert result.failed == 0


def test_links_lead_somewhere():
    beside = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")]
    for page in [*beside, *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
