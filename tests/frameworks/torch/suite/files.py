"""torch's own test files, of a checkout of PyTorch, with RINGREDUCE_AS=gloo beside Gloo itself.

    python -m tests.frameworks.torch.suite.files CHECKOUT                       # all of FILES
    python -m tests.frameworks.torch.suite.files CHECKOUT test_c10d_gloo.py     # one of them

The exit status is 1 when a test passes with Gloo and not with ours.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from .client import ROOT

FILES = (
    "test_c10d_gloo.py", "test_c10d_spawn_gloo.py", "test_c10d_common.py", "test_c10d_pypg.py",
    "test_c10d_object_collectives.py", "test_collective_utils.py", "test_pg_wrapper.py", "test_store.py",
    "test_device_mesh.py", "test_functional_api.py", "test_c10d_functional_native.py",
    "checkpoint/test_file_system_checkpoint_cpu.py", "checkpoint/test_checkpoint.py",
    "optim/test_zero_redundancy_optimizer.py", "algorithms/quantization/test_quantization.py",
    "_shard/sharded_tensor/test_sharded_tensor.py", "elastic/agent/server/test/local_elastic_agent_test.py",
    "launcher/api_test.py",
)  # fmt: skip
OURS = {"RINGREDUCE_AS": "gloo"}
GLOO = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
SECONDS = 100  # for one test
KINDS = ("failure", "error", "skipped")


def outcomes(checkout: Path, file: str, variables: dict[str, str], chosen: str) -> dict[str, tuple[str, str]]:
    """Runs the tests of one file. Returns what became of each, and the text of it; of none if it cannot be run."""
    tests = checkout / "test" / "distributed"
    paths = [str(tests), str(tests.parent), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {name: value for name, value in os.environ.items() if name not in {**OURS, **GLOO}}
    env |= {"OMP_NUM_THREADS": "1", "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(SECONDS), **variables}
    env["PYTHONPATH"] = os.pathsep.join(paths)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-qp", "no:cacheprovider", "-p", f"{__package__}.forked"]
        command += ["--timeout", str(2 * SECONDS), "-k", chosen, f"--junitxml={report}", str(tests / file)]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, errors="replace")
        if done.returncode not in (0, 1):  # such as where the file cannot be imported
            output = done.stdout + done.stderr
            print(f"{file}: pytest ended with {done.returncode}: {output[-1000:]}", flush=True)
            return {}
        return dict(_read(case) for case in ElementTree.parse(report).iter("testcase"))


def _read(case: ElementTree.Element) -> tuple[str, tuple[str, str]]:
    name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
    for kind in KINDS:
        if (found := case.find(kind)) is not None:
            return name, (kind, f"{found.get('message')}\n{found.text}")
    return name, ("passed", "")


def compare(checkout: Path, file: str, chosen: str) -> bool:
    """Prints the numbers of one file and what differs. Returns whether all that passes with Gloo does with ours."""
    gloo = outcomes(checkout, file, GLOO, chosen)
    ours = outcomes(checkout, file, OURS, chosen) if gloo else {}
    ran = [name for name, (kind, _) in gloo.items() if kind != "skipped"]
    passed = [sum(kind == "passed" for kind, _ in one.values()) for one in (gloo, ours)]
    print(f"{file}: {len(ran)} run, {passed[0]} pass with Gloo, {passed[1]} with ours", flush=True)
    worse = [
        name for name in ran if gloo[name][0] == "passed" and ours.get(name, ("missing", ""))[0] != "passed"
    ]
    for name in worse:
        kind, text = ours.get(name, ("missing", ""))
        print(f"  {name}: {kind}\n    " + "\n    ".join(text[-1500:].splitlines()), flush=True)
    for name in ran:
        if gloo[name][0] != "passed" and ours.get(name, ("missing", ""))[0] == "passed":
            print(f"  {name}: passes with ours only", flush=True)
    return not worse


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks.torch.suite.files", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of PyTorch, or its folder test in a folder")
    parser.add_argument("files", nargs="*", default=FILES, help="below test/distributed")
    parser.add_argument("-k", default="", dest="chosen", help="as pytest's")
    told = parser.parse_args()
    there = [file for file in told.files if (told.checkout / "test" / "distributed" / file).exists()]
    if not there:
        raise SystemExit(f"{told.checkout} has none of {', '.join(told.files)} in test/distributed")
    return 0 if all([compare(told.checkout.resolve(), file, told.chosen) for file in there]) else 1


if __name__ == "__main__":
    sys.exit(main())
