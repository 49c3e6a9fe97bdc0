"""Tests and measures everything that it can on a GPU in a number of minutes. A later run continues from there.

    make card [MINUTES=25] [CARD_DIR=build/card] [CARD_FLAGS="--only 'reduce*'"] [EMULATED=1]

The most valuable parts come first. Each part of bench/card_parts.py is a process with a time limit. If it hangs, the
stacks of its Python threads are written to the log, and it is killed with all processes that it started. CARD_DIR then
holds card.md (tables), card.json (the same, and every time measured) and card.log (all output). The next run first runs
the parts that were not reached, and then those that failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from card_parts import ROOT, Part, parts_for

RESERVE = 5.0  # seconds reserved for ending the running part and writing the results
DONE = ("passed", "left out")
UNDONE = ("failed", "timed out", "not reached")
Result = dict[str, Any]


def output_of(*command: str) -> str:
    """Returns what a program prints, or "" if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def describe_machine(emulated: bool) -> dict[str, str]:
    listed = output_of("nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader")
    card, driver, capability = ((listed.splitlines() or [""])[0].split(", ") + [""] * 3)[:3]
    if emulated:
        card, driver, capability = "emulated GPU", "", ""
    found = {"card": card, "driver": driver, "compute capability": capability}
    found["python"] = sys.version.split()[0]
    if release := re.search(r"release ([\d.]+)", output_of(os.environ.get("CUDACXX", "nvcc"), "--version")):
        found["nvcc"] = release[1]
    for package in metadata.distributions():
        name = (package.metadata["Name"] or "").lower()
        if re.fullmatch(r"torch|numpy|cupy(-cuda.*)?|nvidia-nccl-cu\d+", name):
            found[name] = package.version
    return {name: version for name, version in found.items() if version}


# --- one part ----------------------------------------------------------------------------------------------


def processes_of(session: int) -> list[int]:
    """Returns the processes of a session that have not ended, the youngest first."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(entry.name))
    return sorted(found, reverse=True)


def send(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def end_all(session: int, patience: float = RESERVE / 2) -> None:
    """Ends all processes of a session. PYTHONFAULTHANDLER makes each write its stacks first.

    Processes that are stuck in the kernel may survive.
    """
    for process in processes_of(session)[:20]:
        send(process, signal.SIGABRT)
        time.sleep(0.05)
    end = time.monotonic() + patience
    while (left := processes_of(session)) and time.monotonic() < end:
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(0.05)


def run(part: Part, limit: float, folder: Path) -> tuple[int | None, str, str]:
    """Runs a part. Returns its exit status, or None if it was killed, and its stdout and stderr."""
    files = {"python": sys.executable, "junit": folder / "junit.xml", "json": folder / "figures.json"}
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
        },
        **{"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"},
        **{"CUDA_DEVICE_MAX_CONNECTIONS": "32", **dict(part.environment)},
    }
    places = folder / "stdout", folder / "stderr"
    with open(places[0], "ab") as out, open(places[1], "ab") as errors:
        child = subprocess.Popen(
            [word.format(**files) for word in part.command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        status = None
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_all(child.pid)
    out_text, error_text = (place.read_text(errors="replace") for place in places)
    return status, out_text, error_text


def read_tests(junit: Path) -> Result:
    cases = [case for case in ElementTree.parse(junit).iter("testcase")] if junit.exists() else []
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    if not cases:
        return {}
    return {
        "passed tests": len(cases) - len(failed) - len(skipped),
        "skipped tests": len(skipped),
        "failed tests": [f"{case.get('classname')}::{case.get('name')}" for case in failed],
    }


def result_of(part: Part, limit: float, log: Path) -> Result:
    if not shutil.which(part.command[0]) and part.command[0] != "{python}":
        return {"status": "left out", "why": f"there is no {part.command[0]}"}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        status, out, errors = run(part, limit, folder)
        result: Result = {"seconds": round(time.monotonic() - begin, 1), **read_tests(folder / "junit.xml")}
        with suppress(OSError, ValueError):
            result["figures"] = json.loads((folder / "figures.json").read_text())
    with log.open("a") as file:
        file.write(f"\n===== {part.name}: {status}, {now()}\n{out}\n----- stderr\n{errors}\n")
    tests = "passed tests" in result
    if status is None and limit < part.limit:
        result |= {"status": "not reached", "why": f"cut off after {limit:.0f} s: the time was up"}
    elif status is None:
        result |= {"status": "timed out", "why": f"killed after {limit:.0f} s; its stacks are in {log.name}"}
    elif status == 5 or (
        status == 0 and tests and not result["passed tests"]
    ):  # pytest exits with 5 without tests
        result |= {"status": "left out", "why": "no test ran"}
    elif status:
        last = (errors.strip() or out.strip() or "no output").splitlines()[-1]
        result |= {"status": "failed", "why": "" if tests else f"exit status {status}: {last[:200]}"}
    else:
        result |= {"status": "passed", "why": ""}
    return result | {"output": out[-20_000:]}


# --- all parts and their results ---------------------------------------------------------------------------


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def details(result: Result) -> str:
    counts = ""
    if "passed tests" in result:
        failed, skipped = len(result["failed tests"]), result["skipped tests"]
        counts = f"{result['passed tests']} passed, {failed} failed, {skipped} skipped"
    return "; ".join(filter(None, [counts, result.get("why", "")])).replace("|", "/")


def table_of(results: dict[str, Result]) -> str:
    lines = []
    machines = {json.dumps(one["machine"]): one for one in results.values() if "machine" in one}
    for one in machines.values():
        lines += [f"# {one['machine']['card']}\n"] * (not lines)
        rows = [*one["machine"].items(), ("date", one["date"])]
        lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    for status in UNDONE:
        if names := [name for name, one in results.items() if one["status"] == status]:
            lines += [f"{status.capitalize()}: {'; '.join(names)}.", ""]
    lines += ["| part | | s | |", "|---|---|--:|---|"]
    for name, one in results.items():
        lines.append(f"| {name} | {one['status']} | {one.get('seconds', '')} | {details(one)} |")
    for name, one in results.items():
        lines += [f"\nFailed in {name}:\n"] * bool(one.get("failed tests"))
        lines += [f"- {test}" for test in one.get("failed tests", [])]
    for name, one in results.items():
        if "\n|" in one.get("output", "") and "passed tests" not in one:
            lines += [f"\n## {name}\n", one["output"].strip()]
    return "\n".join(lines) + "\n"


def write(folder: Path, results: dict[str, Result]) -> None:
    for name, text in (("card.json", json.dumps(results, indent=1)), ("card.md", table_of(results))):
        place = folder / f"{name}.new"
        place.write_text(text)
        place.replace(folder / name)


def results_so_far(folder: Path, card: str) -> dict[str, Result]:
    """Returns the earlier results on this kind of card, on any machine."""
    try:
        known = json.loads((folder / "card.json").read_text())
    except (OSError, ValueError):
        return {}
    return {name: one for name, one in known.items() if one.get("machine", {}).get("card") == card}


def run_all(parts: list[Part], folder: Path, machine: dict[str, str], end: float) -> dict[str, Result]:
    """Runs the parts. The first one builds: it runs every time, and if it fails, the others do not run."""
    known = results_so_far(folder, machine["card"])
    unreached: Result = {"status": "not reached"}
    results = {**{part.name: known.get(part.name, unreached) for part in parts}, **known}
    open_parts = [part for part in parts[1:] if results[part.name]["status"] not in DONE]
    open_parts.sort(key=lambda part: results[part.name]["status"] != "not reached")
    for part in [parts[0], *open_parts]:
        limit = min(part.limit, end - time.monotonic() - RESERVE)
        if limit <= 0:
            break
        print(f"{part.name:30s}", end=" ", flush=True)
        result = result_of(part, limit, folder / "card.log")
        results[part.name] = {**result, "machine": machine, "date": now()}
        write(folder, results)
        print(f"{result['status']:12s} {result.get('seconds', 0):7.1f} s  {details(result)}", flush=True)
        if part is parts[0] and result["status"] != "passed":
            break
    write(folder, results)
    return results


def build_part(machine: dict[str, str], options: argparse.Namespace) -> Part:
    """Returns the part that builds, only for the card of this machine."""
    flags = [f"GPU_PYTHON={sys.executable}"]
    if capability := machine.get("compute capability"):
        flags.append(f"GPU_ARCHITECTURES={capability.replace('.', '')}")
    command = ["make", "emulated"] if options.emulated else ["make", "gpu", *flags]
    return Part("build", ("true",) if options.no_build else tuple(command), 600)


def main(arguments: list[str], parts: list[Part] | None = None) -> int:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=25.0, help="time for all parts, including the build (25)"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "card", help="folder for the results")
    parser.add_argument(
        "--only", nargs="+", default=["*"], help="only parts whose names match, such as 'all-reduce*'"
    )
    parser.add_argument("--no-build", action="store_true", help="do not build")
    parser.add_argument("--emulated", action="store_true", help="a dry run on the emulated GPU")
    options = parser.parse_args(arguments)
    machine = describe_machine(options.emulated)
    if "card" not in machine:
        print("make card: nvidia-smi lists no GPU; use make card EMULATED=1 for a dry run without one")
        return 2
    if options.emulated:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also ends the running part
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    options.folder.mkdir(parents=True, exist_ok=True)
    if not parts:
        chosen = [
            one
            for one in parts_for(options.emulated)
            if any(fnmatch.fnmatch(one.name, pattern) for pattern in options.only)
        ]
        parts = [build_part(machine, options), *chosen]
    results = run_all(parts, options.folder, machine, begin + 60 * options.minutes)
    for status in UNDONE:
        if names := [name for name, one in results.items() if one["status"] == status]:
            print(f"{status}: {'; '.join(names)}")
    print(f"results: {options.folder / 'card.md'}, card.json, card.log")
    return int(any(one["status"] not in DONE for one in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
