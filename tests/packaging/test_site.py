"""The documentation's site: every public name is on it, with its docstring, and every link leads somewhere."""

from __future__ import annotations

import html
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import ringreduce

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = (site / "api.html").read_text()
    named = set(re.findall(r'id="ringreduce\.([\w.]+)"', text))
    errors = {name for name in named if name.startswith("errors.")}
    known = {name.removeprefix("errors.") for name in errors} | named
    with_torch = {"DataParallel", "ParameterServer", "ShardedOptimizer", "SyncBatchNorm"}
    assert not (set(ringreduce.__all__) | with_torch) - known


def test_every_docstring_is_in_the_reference(site: Path) -> None:
    words = _words(re.sub(r"<[^>]*>", "", (site / "api.html").read_text()))
    public = [getattr(ringreduce, name) for name in ringreduce.__all__]
    public += [
        getattr(ringreduce.Communicator, name) for name in vars(ringreduce.Communicator) if name[0] != "_"
    ]
    missing = [
        it for it in public if inspect.getdoc(it) and _words(inspect.getdoc(it).split("\n")[0]) not in words
    ]
    assert not missing


def _words(text: str) -> str:
    """The text without markup, which Markdown and reStructuredText spell in their ways."""
    return " ".join(re.findall(r"[a-z0-9]+", re.sub(r":\w+:`", " ", html.unescape(text)).lower()))


def test_every_link_leads_somewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        if page.name == "404.html":
            continue
        for target in re.findall(r'(?:href|src)="([^"#:]+)(?:#[^"]*)?"', page.read_text()):
            assert (page.parent / unquote(target)).exists(), (page.name, target)


def test_a_link_to_a_file_leads_to_a_copy(site: Path) -> None:
    assert 'href="files/examples/ddp.py.txt"' in (site / "torch.html").read_text()
    assert (site / "files/examples/ddp.py.txt").read_text() == (ROOT / "examples/ddp.py").read_text()
