"""The source distribution holds what a build needs, and a wheel of it works where there is no compiler."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from importlib.metadata import PathDistribution, distribution, version
from pathlib import Path

import pytest
from installation import BUILT, ROOT, by_make

import ringreduce

LICENSES = {f"packaging/licenses/{name}.txt" for name in ("nanobind", "robin-map")}
BESIDE = {
    *("CHANGELOG.md", "CMakeLists.txt", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"),
    *LICENSES,
}
MADE = {"PKG-INFO", "setup.cfg"}
THERE_IS_TORCH = importlib.util.find_spec("torch") is not None
needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a repository")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The archive."""
    folder = tmp_path_factory.mktemp("sdist")
    words = [sys.executable, ROOT / "packaging" / "wheels.py", "sdist", "--into", folder]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return folder / f"ringreduce-{ringreduce.__version__}.tar.gz"


def tracked(*folders: str) -> set[str]:
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return {name for name in listed if (ROOT / name).exists()}


@needs_git
def test_sdist_is_what_a_build_needs(sdist):
    with tarfile.open(sdist) as opened:
        names = {member.name.partition("/")[2] for member in opened if member.isfile()}
    sources = tracked("csrc", "ringreduce") | BESIDE
    assert {name for name in names - MADE if not name.startswith("ringreduce.egg-info/")} == sources


def install(sdist: Path, folder: Path, options: str) -> Path:
    """Installs a wheel of it in a new environment, which sees NumPy and torch of this one; returns its bin."""
    pip = [sys.executable, "-m", "pip", "-q"]
    wheels = folder.parent / "wheels"
    words = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", wheels, sdist]
    subprocess.run([*pip, *words], env=os.environ | {"SKBUILD_CMAKE_DEFINE": options}, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    words = ["--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", *wheels.iterdir()]
    subprocess.run([*pip, *words], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def run_in(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs one of the environment's programs where there is nothing else, no compiler above all."""
    done = subprocess.run(
        [folder / words[0], *words[1:]], env={"PATH": str(folder), "RINGREDUCE_CACHE": str(folder.parent)} | more,
        cwd=folder.parent, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def installed(sdist, tmp_path_factory):
    """A wheel of what make has built, which pip makes of the source distribution and installs."""
    return install(sdist, tmp_path_factory.mktemp("installed") / "env", f"RINGREDUCE_BUILT={BUILT}")


def metadata_of(installed: Path) -> Path:
    (info,) = installed.parent.glob("lib/python*/site-packages/ringreduce-*.dist-info")
    return info


@by_make
@needs_git
def test_wheel_is_the_package_and_what_was_built(installed):
    info = metadata_of(installed)
    files = {path.relative_to(info.parent).as_posix() for path in info.with_name("ringreduce").rglob("*")
             if path.is_file()}  # fmt: skip
    made = {name for name in files if name.endswith((".so", ".pyc")) or name.startswith("ringreduce/csrc/")}
    assert files - made - {"ringreduce/_built.txt"} == tracked("ringreduce")


@by_make
def test_wheel_has_the_licenses_of_what_is_linked_into_it(installed):
    info = metadata_of(installed)
    named = PathDistribution(info).metadata.get_all("License-File")
    assert {*named} == LICENSES | {"LICENSE"}
    texts = {Path(name).stem: (info / "licenses" / name).read_text() for name in named}
    linked = distribution("nanobind")
    assert texts["nanobind"] == linked.read_text("licenses/LICENSE")
    (header,) = (path for path in linked.files if path.name == "robin_map.h")
    comment = re.match(r"/\*\*\n(.*?) \*/", linked.locate_file(header).read_text(), re.DOTALL)[1]
    assert texts["robin-map"] == re.sub(r"^ \* ?", "", comment, flags=re.MULTILINE)


@by_make
def test_version_says_how_it_was_built(installed):
    lines = dict(
        line.split(": ") for line in run_in(installed, "ringreduce", "--version").stdout.splitlines()[1:]
    )
    assert re.fullmatch(r"(GNU|Clang) [\d.]+", lines["compiler"])
    assert re.fullmatch(r"[\d.]+ for( sm_\d+)+ compute_\d+|built without", lines["CUDA"])
    assert re.fullmatch(r"\d+\.\d+", lines["protocol"])
    if (ROOT / ".git").exists():
        words = ["git", "rev-parse", lines["commit"].removesuffix("-dirty")]
        subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    if THERE_IS_TORCH:
        assert version("torch").partition("+")[0] in lines["torch backend"].split(", ")


PROGRAM = """
import numpy as np, ringreduce


def rank_of(comm):
    return comm.rank, comm.all_reduce(np.full(4, 3.0)).tolist()


if __name__ == "__main__":
    print(ringreduce.__file__, *ringreduce.run(rank_of, 2), sep="\\n")
"""


@by_make
def test_processes_of_an_installation(installed):
    (installed.parent / "program.py").write_text(PROGRAM)
    file, *ranks = run_in(installed, "python", "program.py").stdout.splitlines()
    assert Path(file).is_relative_to(installed.parent)
    assert ranks == [f"({rank}, {[6.0] * 4})" for rank in range(2)]


@by_make
def test_command_line_of_an_installation(installed):
    words = ["bench", "-n", "2", "-b", "4K", "--peers", "none", "--iterations", "10", "--format", "csv"]
    rows = run_in(installed, "ringreduce", *words).stdout
    assert "4096" in rows and "auto" in rows


TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("ringreduce", rank=0, world_size=1, store=dist.HashStore())
x = torch.ones(3)
dist.all_reduce(x)
print(x.tolist())
"""


@pytest.mark.slow
@by_make
@pytest.mark.skipif(not THERE_IS_TORCH, reason="there is no torch")
def test_torch_backend_of_an_installation(installed):
    done = run_in(installed, "python", "-c", TORCH)
    assert done.stdout.strip() == "[1.0, 1.0, 1.0]"
    assert "building" not in done.stderr  # it has come along


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_sdist_compiles(sdist, tmp_path):
    """As pip does where there is no wheel; what it needs and the archive lacks would end it."""
    installed = install(sdist, tmp_path / "env", "RINGREDUCE_CUDA=OFF;RINGREDUCE_TORCH=OFF")
    (tmp_path / "program.py").write_text(PROGRAM)
    assert f"(1, {[6.0] * 4})" in run_in(installed, "python", str(tmp_path / "program.py")).stdout
    lines = run_in(installed, "ringreduce", "--version").stdout.splitlines()
    assert "commit: unknown" in lines and "CUDA: built without" in lines
