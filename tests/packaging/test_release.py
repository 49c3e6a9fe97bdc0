"""The parts of packaging/release.py that build nothing: what it refuses, and the files that it adds to the archives."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import zipfile

import pytest
import release
import reproducible


def one_line(function, *given, **named):
    with pytest.raises(SystemExit) as ended:
        function(*given, **named)
    said = str(ended.value)
    assert said and "\n" not in said
    return said


# --- version and changelog ----------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path):
    """A folder that states version 1.2.3, released on the first of May."""
    for name, line in {
        "pyproject.toml": 'version = "1.2.3"', "ringreduce/__init__.py": '__version__ = "1.2.3"',
        "CITATION.cff": "version: 1.2.3",
        "CHANGELOG.md": "# Changelog\n\n## [1.2.3] - 2026-05-01\n\nNew.\n\n## [1.2.2] - 2026-04-01\n\nOld.",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{line}\n")
    return tmp_path


def test_version_and_notes(sources):
    assert release.version(sources) == "1.2.3"
    assert release.notes("1.2.3", sources) == "New.\n"
    assert release.notes("1.2.2", sources) == "Old.\n"


@pytest.mark.parametrize("name", release.STATED)
def test_versions_that_disagree(sources, name):
    path = sources / name
    path.write_text(path.read_text().replace("1.2.3", "1.2.4"))
    said = one_line(release.version, sources)
    assert f"{name} says 1.2.4" in said and said.count("says 1.2.3") == 2


def test_a_changelog_without_the_version(sources):
    assert "## [1.2.4] - YYYY-MM-DD" in one_line(release.notes, "1.2.4", sources)
    assert "## [1.2] - YYYY-MM-DD" in one_line(release.notes, "1.2", sources)


def test_a_changelog_without_a_date(sources):
    path = sources / "CHANGELOG.md"
    path.write_text(path.read_text().replace("2026-05-01", "unreleased"))
    assert "'unreleased'" in one_line(release.notes, "1.2.3", sources)
    assert release.notes("1.2.3", sources, dated=False) == "New.\n"


def test_tags_of_pythons():
    assert [release.python(tag) for tag in ("cp39", "cp311", "cp313t")] == [
        "python3.9",
        "python3.11",
        "python3.13t",
    ]
    assert "python3.11" in one_line(release.python, "python3.11")


# --- differences --------------------------------------------------------------------------------------------------

DAY = (2026, 5, 1, 0, 0, 0)


def zipped(path, members, day=DAY, mode=0o644, level=6):
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, day)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            opened.writestr(info, content, compresslevel=level)
    return path


MEMBERS = {"a.py": b"x = 1\n" * 100, "b.so": bytes(range(100))}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"members": MEMBERS | {"b.so": bytes([*range(50), 0, *range(51, 100)])}},
         ["b.so: 100 and 100 bytes, which differ from byte 50 on"]),
        ({"members": MEMBERS | {"b.so": bytes(range(99))}}, ["b.so: 100 and 99 bytes, which differ from byte 99 on"]),
        ({"members": {"a.py": MEMBERS["a.py"]}}, ["b.so is only in FOLDER/first.whl"]),
        ({"members": MEMBERS | {"c": b""}}, ["c is only in FOLDER/second.whl"]),
        ({"day": (2026, 5, 2, 0, 0, 0)},
         [f"{name}: time {DAY} and (2026, 5, 2, 0, 0, 0)" for name in MEMBERS]),
        ({"mode": 0o600}, [f"{name}: mode 0o644 and 0o600" for name in MEMBERS]),
        ({"members": dict(reversed(MEMBERS.items()))}, ["the members are the same, in another order"]),
        ({"level": 0}, ["the members are the same, but not how they are packed"]),
    ],
)  # fmt: skip
def test_differences_between_wheels(tmp_path, change, said):
    first = zipped(tmp_path / "first.whl", MEMBERS)
    second = zipped(tmp_path / "second.whl", **{"members": MEMBERS} | change)
    found = reproducible.differences(first, second)
    assert [line.replace(str(tmp_path), "FOLDER") for line in found] == said


def test_two_builds_that_differ(tmp_path):
    for name, content in {"first": b"1", "second": b"2"}.items():
        (tmp_path / name).mkdir()
        zipped(tmp_path / name / "x.whl", {"a.py": content})
        zipped(tmp_path / name / f"{name}.whl", {})
    with pytest.raises(SystemExit) as ended:
        release.compare(tmp_path / "first", tmp_path / "second")
    _, *lines = str(ended.value).splitlines()
    assert sorted(lines) == [
        "first.whl was made only once", "second.whl was made only once",
        "x.whl: a.py: 1 and 1 bytes, which differ from byte 0 on",
    ]  # fmt: skip


def test_no_kernel_has_a_name_that_differs_between_builds():
    """nvcc makes those in an unnamed namespace, and static ones, from the folder and the options of the build."""
    files = [one for one in (release.ROOT / "csrc").rglob("*") if one.suffix in (".cu", ".cuh")]
    assert files
    local = re.compile(
        r"^namespace {|^static .*__(global|device|constant)__|^__(device|constant)__ static", re.M
    )
    assert [one.name for one in files if local.search(one.read_text())] == []


def test_packing_forgets_who_and_when(tmp_path):
    archives = []
    for user, (mode, time) in {"one": (0o600, 1e9), "two": (0o664, 2e9)}.items():
        folder = tmp_path / user / "sources"
        folder.mkdir(parents=True)
        for name in ("b", "a") if user == "one" else ("a", "b"):
            (folder / name).write_text(name)
            (folder / name).chmod(mode)
            os.utime(folder / name, (time, time))
        (folder / "program").touch(mode | 0o100)
        archives.append(tmp_path / user / "sources.tar.gz")
        reproducible.pack(folder, archives[-1], 1_777_000_000)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as opened:
        assert [(it.name, it.mode, it.mtime) for it in opened] == [
            ("sources", 0o755, 1_777_000_000), ("sources/a", 0o644, 1_777_000_000),
            ("sources/b", 0o644, 1_777_000_000), ("sources/program", 0o755, 1_777_000_000),
        ]  # fmt: skip
    reproducible.pack(tmp_path / "two" / "sources", archives[1], 1_777_000_001)
    assert "sources/a: time 1777000000 and 1777000001" in reproducible.differences(*archives)


# --- what is added ------------------------------------------------------------------------------------------------

METADATA = """Metadata-Version: 2.4
Name: ringreduce
Version: 1.2.3
License-Expression: Apache-2.0 AND MIT
Requires-Dist: numpy>=1.24
Requires-Dist: matplotlib; extra == "plot"
"""
WHEEL = {
    "ringreduce/_built.txt": "compiler: GNU 12.2.0\nnanobind: 3.1.0\nCUDA: 12.8.93 for sm_80 compute_80\ncommit: abc\n",
    "ringreduce/_engine.abi3.so": "engine",
    "ringreduce/libringreduce_cuda.so": "cuda",
    "ringreduce/_torch-2.13.0-0123abcd.cpython-312-x86_64-linux-gnu.so": "torch",
    "ringreduce/_torch-2.13.0-0123abcd.cpython-313-x86_64-linux-gnu.so": "torch",
    "ringreduce.libs/libgomp-a34b3233.so.1.0.0": "copied",
    "ringreduce-1.2.3.dist-info/METADATA": METADATA,
}


@pytest.fixture
def sbom():
    """Imported late: it takes two seconds, in each of pytest's workers."""
    import sbom

    return sbom


@pytest.fixture
def wheel(tmp_path):
    return zipped(tmp_path / "ringreduce-1.2.3-cp312-abi3-manylinux_2_31_x86_64.whl", WHEEL)


@pytest.mark.slow
def test_bill_of_materials_is_cyclonedx(wheel, sbom):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = sbom.of(wheel, 1_777_000_000)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert sbom.of(wheel, 1_777_000_000) == text
    listed = json.loads(text)
    assert listed["metadata"]["timestamp"].startswith("2026-04-24")
    whole = listed["metadata"]["component"]
    assert (whole["version"], whole["licenses"]) == ("1.2.3", [{"expression": "Apache-2.0 AND MIT"}])
    assert {it["name"] for it in whole["components"]} == {name for name in WHEEL if ".so" in name}
    assert {(it["name"], it.get("version"), it["scope"]) for it in listed["components"]} == {
        ("nanobind", "3.1.0", "required"), ("robin-map", None, "required"), ("cuda-runtime", "12.8.93", "required"),
        ("libgomp-a34b3233.so.1.0.0", None, "required"), ("numpy", None, "required"), ("torch", "2.13.0", "optional"),
    }  # fmt: skip


@pytest.mark.slow
def test_bill_of_materials_of_a_wheel_for_cpus_alone(tmp_path, sbom):
    few = {name: text for name, text in WHEEL.items() if not re.search("cuda|torch|libs", name)}
    listed = json.loads(sbom.of(zipped(tmp_path / "few.whl", few), 1_777_000_000))
    assert {it["name"] for it in listed["components"]} == {"nanobind", "robin-map", "numpy"}


def test_checksums_verify(tmp_path, wheel):
    (tmp_path / "release-notes.md").write_text("New.\n")
    (tmp_path / "folder").mkdir()
    release.checksums(tmp_path)
    words = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(words, cwd=tmp_path, check=True)
    assert len((tmp_path / "SHA256SUMS").read_text().splitlines()) == 2
    (tmp_path / "release-notes.md").write_text("Older.\n")
    assert subprocess.run(words, cwd=tmp_path, capture_output=True).returncode != 0


def test_provenance_names_every_file_and_the_commit(tmp_path, wheel):
    subjects = release.digests(tmp_path)
    statement = release.provenance(
        subjects, "abc", {"pythons": ["cp312"]}, ["pkg:pypi/cmake@4.4.5"], release.now()
    )
    assert {it["name"]: it["digest"]["sha256"] for it in statement["subject"]} == subjects
    definition = statement["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"] == [
        {"name": "ringreduce", "digest": {"gitCommit": "abc"}}, {"uri": "pkg:pypi/cmake@4.4.5"},
    ]  # fmt: skip
    assert definition["externalParameters"] == {"pythons": ["cp312"]}
