"""Makes everything that a release needs, in dist/VERSION, and says how to publish it: make release.

The commit is cloned twice, and each clone builds the archives with nothing of an earlier build. The second one has
another umask and time zone, and no compiler cache. Both must have made the same, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import reproducible

ROOT = Path(__file__).resolve().parents[1]
CLONES = ROOT / "build" / "release"
STATED = {
    "pyproject.toml": r'^version = "(.+)"$',
    "ringreduce/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
}


# --- what is released ---------------------------------------------------------------------------------------------


def version(root: Path = ROOT) -> str:
    """What the files agree on that state the version."""
    stated = {
        name: re.search(pattern, (root / name).read_text(), re.MULTILINE)[1]
        for name, pattern in STATED.items()
    }
    if len({*stated.values()}) > 1:
        said = ", ".join(f"{name} says {number}" for name, number in stated.items())
        sys.exit(f"The files do not agree on the version: {said}")
    return stated["pyproject.toml"]


def notes(number: str, root: Path = ROOT, dated: bool = True) -> str:
    """The changelog's section of that version."""
    text = (root / "CHANGELOG.md").read_text()
    section = re.search(
        rf"^## \[{re.escape(number)}\] - (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if not section:
        sys.exit(f"CHANGELOG.md has no section of this version: add `## [{number}] - YYYY-MM-DD`")
    date, said = section.groups()
    if dated and not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        sys.exit(f"CHANGELOG.md: the section of {number} has {date!r} for a date: write YYYY-MM-DD")
    return said.strip() + "\n"


def git(*words: str | Path) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def check_repository(number: str) -> None:
    if git("status", "--porcelain"):
        sys.exit("There are changes that are not committed, and a release is built from a commit")
    if git("tag", "--list", f"v{number}"):
        sys.exit(f"There is a tag v{number} already: raise the version in {', '.join(STATED)}")


# --- building -----------------------------------------------------------------------------------------------------


def python(tag: str) -> str:
    """The command of the Python with that tag: python3.13t for cp313t."""
    found = re.fullmatch(r"cp(\d)(\d+t?)", tag)
    if not found:
        sys.exit(f"--pythons {tag}: a Python is named as in the names of wheels, such as cp311 or cp313t")
    return f"python{found[1]}.{found[2]}"


def build(name: str, commit: str, calls: Iterable[Sequence[str]], umask: int, **more: str) -> Path:
    """Clones the commit, and calls wheels.py in the clone; returns the archives' folder."""
    clone = CLONES / name
    shutil.rmtree(clone, ignore_errors=True)
    words: list[Sequence[str | Path]] = [
        ["git", "clone", "--quiet", "--no-checkout", ROOT, clone],
        ["git", "-C", clone, "checkout", "--quiet", "--detach", commit],
        *([sys.executable, clone / "packaging" / "wheels.py", "wheel", *call] for call in calls),
    ]
    print(f"Building in {clone.relative_to(ROOT)}...", flush=True)
    for one in words:
        if status := subprocess.run(one, env=os.environ | more, umask=umask).returncode:
            sys.exit(status)
    return clone / "dist"


def compare(first: Path, second: Path) -> None:
    """Ends with a line for each difference between the folders' archives."""
    names = [{path.name for path in folder.iterdir()} for folder in (first, second)]
    said = [f"{name} was made only once" for name in names[0] ^ names[1]]
    for name in sorted(names[0] & names[1]):
        said += [f"{name}: {line}" for line in reproducible.differences(first / name, second / name)]
    if said:
        sys.exit("Two builds of this commit differ:\n" + "\n".join(said))
    print(f"A second build in another folder has made the same {len(names[0])} archives, bit for bit.")


# --- what goes along ----------------------------------------------------------------------------------------------


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


def checksums(folder: Path) -> None:
    lines = [f"{digest}  {name}\n" for name, digest in digests(folder).items()]
    (folder / "SHA256SUMS").write_text("".join(lines))


def packages(clone: Path) -> list[str]:
    """What the wheels were built with, as package URLs."""
    found = set()
    for one in clone.glob("build/wheel/python*/bin/python"):
        listed = subprocess.run(
            [one, "-m", "pip", "list", "--format", "json"], check=True, stdout=subprocess.PIPE
        )
        found |= {f"pkg:pypi/{it['name'].lower()}@{it['version']}" for it in json.loads(listed.stdout)}
    return sorted(found)


def provenance(
    subjects: Mapping[str, str], commit: str, parameters: Mapping[str, Any], used: Iterable[str], started: str
) -> dict[str, Any]:
    """SLSA's statement of where the files come from, version 1, in in-toto's form."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:x-ringreduce:make-release:1",
                "externalParameters": dict(parameters),
                "resolvedDependencies": [
                    {"name": "ringreduce", "digest": {"gitCommit": commit}},
                    *({"uri": uri} for uri in used),
                ],
            },
            "runDetails": {
                "builder": {"id": "urn:x-ringreduce:machine-of-a-maintainer"},
                "metadata": {"startedOn": started, "finishedOn": now()},
            },
        },
    }


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- the command --------------------------------------------------------------------------------------------------


def put_together(made: Path, number: str, said: str, into: Path) -> None:
    """The archives, and what is made from them."""
    import sbom

    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(made, into)
    when = reproducible.date(ROOT)
    for wheel in sorted(into.glob("*.whl")):
        wheel.with_suffix(".cdx.json").write_text(sbom.of(wheel, when))
    docs = ROOT / "build" / "docs"
    if (docs / "index.html").exists():
        reproducible.pack(docs, into / f"ringreduce-{number}-docs.tar.gz", when)
    else:
        print("There is no site in build/docs: no archive of it. make docs builds it")
    (into / "release-notes.md").write_text(said)


def say_how_to_publish(into: Path, number: str, commit: str, uploaded: Sequence[Path]) -> None:
    at = into.relative_to(ROOT)
    others = [path.name for path in sorted(into.iterdir()) if path not in uploaded]
    print(f"""
To publish this:
  git tag --sign --message 'ringreduce {number}' v{number} {commit} && git push origin v{number}
  gpg --armor --detach-sign {at}/SHA256SUMS
  {shlex.join([".venv/bin/twine", "upload", *(str(path.relative_to(ROOT)) for path in uploaded)])}
Then attach to the tag's page SHA256SUMS.asc and, of {at}: {", ".join(others)}.
release-notes.md is the page's text.""")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument(
        "--pythons", nargs="+", required=True, help="such as cp311: those to build wheels with"
    )
    asked.add_argument("--torch", nargs="*", default=[], help="versions whose modules are built along")
    asked.add_argument("--platforms", nargs="*", default=[], help="such as aarch64 or x86_64-musl")
    asked.add_argument(
        "--rehearse", action="store_true", help="whatever the changelog and the repository say"
    )
    asked.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    options = asked.parse_args()
    number = version()
    said = notes(number, dated=not options.rehearse)
    if not options.rehearse:
        check_repository(number)
    commit, started = git("rev-parse", "HEAD"), now()
    words = ["-j", str(options.jobs), "--python", *map(python, options.pythons), "--torch", *options.torch]
    of = [dict(zip(("--arch", "--libc"), one.split("-"), strict=False)) for one in options.platforms] or [{}]
    calls = [[*words, *(word for pair in one.items() for word in pair)] for one in of]
    first = build("first", commit, calls, 0o022)
    compare(first, build("the-second", commit, calls, 0o077, CCACHE_DISABLE="1", TZ="Pacific/Kiritimati"))

    into = ROOT / "dist" / number
    put_together(first, number, said, into)
    uploaded = [into / path.name for path in sorted(first.iterdir())]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *uploaded], check=True)
    parameters = {name: getattr(options, name) for name in ("pythons", "torch", "platforms")}
    statement = provenance(digests(into), commit, parameters, packages(first.parent), started)
    (into / "provenance.json").write_text(json.dumps(statement, indent=2) + "\n")
    checksums(into)
    shutil.rmtree(CLONES)
    say_how_to_publish(into, number, commit, uploaded)


if __name__ == "__main__":
    main()
