"""What makes all builds of one commit identical bit for bit, and what says where two of them differ."""

from __future__ import annotations

import gzip
import os
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path

FIRST_DAY = "315532800"  # of 1980, before which zip archives know no time


def settle(root: Path) -> None:
    """Takes from this process and its children what differs between folders, users and days."""
    os.umask(0o022)
    date(root)
    mapped = f"-ffile-prefix-map={root}=."  # __FILE__ in headers
    for name, option in {"CXXFLAGS": mapped, "CUDAFLAGS": f"-Xcompiler={mapped}"}.items():
        os.environ[name] = f"{os.environ.get(name, '')} {option}".strip()


def date(root: Path) -> int:
    """Returns SOURCE_DATE_EPOCH, which it sets to the time of the commit if it is not set."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=root, capture_output=True, text=True)
    return int(os.environ.setdefault("SOURCE_DATE_EPOCH", done.stdout.strip() or FIRST_DAY))


def pack(folder: Path, archive: Path, time: int) -> None:
    """Packs a folder as a .tar.gz: in the order of names, owned by nobody, all of that time."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = time
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    with (
        gzip.GzipFile(archive, "wb", mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w") as opened,
    ):
        opened.add(folder, folder.name, filter=plain)


# --- differences --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    time: object
    mode: str
    owner: object
    content: bytes


def _members(archive: Path) -> dict[str, Member]:
    """In their order in the archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            return {
                one.filename: Member(one.date_time, oct(one.external_attr >> 16), None, opened.read(one))
                for one in opened.infolist()
            }
    with tarfile.open(archive) as opened:
        return {
            one.name: Member(
                one.mtime, oct(one.mode), (one.uid, one.gid, one.uname, one.gname),
                opened.extractfile(one).read() if one.isfile() else b"",
            )
            for one in opened
        }  # fmt: skip


def differences(first: Path, second: Path) -> list[str]:
    """A line for each difference between two archives; none if they are identical."""
    if first.read_bytes() == second.read_bytes():
        return []
    one, two = _members(first), _members(second)
    said = [f"{name} is only in {first if name in one else second}" for name in sorted({*one} ^ {*two})]
    for name in one.keys() & two.keys():
        said += [f"{name}: {line}" for line in _of_members(one[name], two[name])]
    if not said and [*one] != [*two]:
        said = ["the members are the same, in another order"]
    return sorted(said) or ["the members are the same, but not how they are packed"]


def _of_members(one: Member, two: Member) -> list[str]:
    pairs = {field.name: (getattr(one, field.name), getattr(two, field.name)) for field in fields(Member)}
    (a, b) = pairs.pop("content")
    said = [f"{what} {x} and {y}" for what, (x, y) in pairs.items() if x != y]
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        said.append(f"{len(a):,} and {len(b):,} bytes, which differ from byte {at:,} on")
    return said
