"""Values that an environment variable cannot have: the error is of a documented kind and names the variable."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest

import ringreduce
from tests.conftest import slowly
from tests.processes import python

NO_CHOICE = ["x", "AUTO", "2", "-1", "/", "nan"]
NO_PLACE = [
    "x",
    "host",
    "host:",
    "host:0",
    "host:99999",
    ":29400",
    "host:x",
    "/",
    "a,,b:80",
    "tcp://a:80",
    "a b:80",
]
NO_NUMBER = ["x", "1.5", "nan", "9" * 30, "1e3", "0x1"]

ANYWHERE = {
    "RINGREDUCE_TRANSPORT": [*NO_CHOICE, "shm,tcp"],
    "RINGREDUCE_IFACE": ["nosuch0", "1", "/", "eth0:1", "x" * 40],
    "RINGREDUCE_TLS": [*NO_CHOICE, "yes"],
    "RINGREDUCE_TCP_CHECK": [*NO_CHOICE, "true"],
    "RINGREDUCE_TCP_STREAMS": ["x", "0", "65", "-1", "1.5", "nan", "9" * 30, "2x"],
    "RINGREDUCE_LINKS": [*NO_CHOICE, "on"],
    "RINGREDUCE_ALGORITHM": ["x", "all_reduce=x", "x=ring", "all_reduce=", "=", "/"],
    "RINGREDUCE_TUNING": ["/no/such/file", "/", "/etc/passwd", "x", "on"],
    "RINGREDUCE_REPRODUCIBLE": [*NO_CHOICE, "yes"],
    "RINGREDUCE_ISA": ["x", "AVX2", "1", "sse", "/"],
    "RINGREDUCE_LOG": [*NO_CHOICE, "INFO", "warning"],
    "RINGREDUCE_REPORT": ["x", "exit,x", "1", "/", "EXIT"],
    "RINGREDUCE_METRICS": ["x", "0", "99999", "-1", "host:x", "1.5"],
    "RINGREDUCE_METRICS_FILE": ["/", "/no/such/folder/file", "/proc/x", "/dev", "."],
    "RINGREDUCE_GPU_TRANSPORT": [*NO_CHOICE, "CUDA"],
    "RINGREDUCE_CUDA_HANDLES": [*NO_CHOICE, "IPC"],
    "RINGREDUCE_CUDA_LIBRARY": ["/", "/no/such", "./nothing", "/dev/null"],
    "RINGREDUCE_TORCH_MEMORY": [*NO_CHOICE, "SHARED"],
    "RINGREDUCE_MPI_COUNT": NO_CHOICE,
    "RINGREDUCE_CACHE": ["/dev/null", "/etc/passwd"],
}
OF_LAUNCHERS = {
    "RINGREDUCE_RENDEZVOUS": NO_PLACE,
    "RANK": [*NO_NUMBER, "-1", "2"],
    "WORLD_SIZE": [*NO_NUMBER, "0", "-2"],
    "LOCAL_WORLD_SIZE": [*NO_NUMBER, "0", "-1"],
}
OF_A_STORE = {"MASTER_PORT": [*NO_NUMBER, "0", "-1", "99999"], "MASTER_ADDR": ["no.such.host.invalid"]}
JOB = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RINGREDUCE_SECRET": "s"}


def _said(pipe, variables, size):
    """What a process with these variables is told."""
    os.environ.update(variables)
    try:
        if size:
            ringreduce.run(lambda comm: comm.barrier(), size, transport="tcp", timeout=10.0)
        else:
            ringreduce.init(timeout=1.5).close()
        said = "nothing"
    except ringreduce.RankFailed as failed:
        error = failed.__cause__
        said = str(error) if isinstance(error, ValueError | ringreduce.Error) else repr(failed)
    except (ValueError, ringreduce.Error) as error:
        said = str(error)
    except BaseException as error:
        said = repr(error)
    pipe.send(said)
    pipe.close()
    os._exit(0)


def said(variables, size=0):
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_said, args=(sending, variables, size))
    process.start()
    sending.close()
    try:
        assert receiving.poll(30), f"it hangs with {variables}"
        return receiving.recv()
    finally:
        process.kill()
        process.join()
        receiving.close()


# The first few values, and all of them: each takes processes of its own.
SOME = pytest.mark.parametrize("some", [2, *slowly(None)], ids=["few", "all"])


def assert_named(name, values, size, others):
    texts = {value: said({**others, name: value}, size) for value in values}
    assert {value: text for value, text in texts.items() if name not in text or "Traceback" in text} == {}


@SOME
@pytest.mark.parametrize("name", ANYWHERE)
def test_what_a_variable_cannot_be(name, some):
    if name in ("RINGREDUCE_METRICS", "RINGREDUCE_METRICS_FILE"):
        pytest.importorskip("prometheus_client")
    transport = {} if name == "RINGREDUCE_TRANSPORT" else {"RINGREDUCE_TRANSPORT": ""}
    assert_named(name, ANYWHERE[name][:some], 0 if name == "RINGREDUCE_TRANSPORT" else 2, transport)


@SOME
@pytest.mark.parametrize("name", OF_LAUNCHERS)
def test_what_a_variable_of_a_launcher_cannot_be(name, some):
    assert_named(name, OF_LAUNCHERS[name][:some], 0, JOB)


@SOME
@pytest.mark.parametrize("name", OF_A_STORE)
def test_what_the_place_of_torchs_store_cannot_be(name, some):
    pytest.importorskip("torch")
    place = {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29499", "RANK": "1"}
    assert_named(name, OF_A_STORE[name][:some], 0, JOB | place)


@pytest.mark.slow
def test_the_others_are_told():
    """A variable that is wrong on one rank only ends the wait of all."""
    name = f"told-{os.getpid()}"
    program = f"import sys, ringreduce; ringreduce.init(int(sys.argv[1]), 3, {name!r}, timeout=300)"
    for variable in ("RINGREDUCE_GPU_TRANSPORT", "RINGREDUCE_TUNING"):
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(rank)], stderr=subprocess.PIPE, text=True,
                env={**os.environ, **({variable: "/no/such"} if rank == wrong else {})},
            )
            for wrong in [1] for rank in range(3)
        ]  # fmt: skip
        texts = [rank.communicate(timeout=200)[1].splitlines()[-1] for rank in ranks]
        assert all(variable in text for text in texts), texts


def test_an_empty_variable_is_unset():
    names = [*ANYWHERE, *OF_LAUNCHERS]
    assert said(dict.fromkeys(names, ""), 0) == "nothing"


def test_a_program_fails_with_its_variables():
    """It neither goes on without what was asked for, nor prints what a thread of ours has met."""
    pytest.importorskip("prometheus_client")
    done = python("-c", "import ringreduce; ringreduce.init().barrier()", RINGREDUCE_METRICS_FILE="/")
    assert done.returncode == 1 and "Exception in thread" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ValueError: RINGREDUCE_METRICS_FILE (metrics_file)")
