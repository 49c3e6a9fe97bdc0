"""How torch finds the backend, and how its ranks meet under each launcher: real processes, real launchers."""

from __future__ import annotations

import os
import runpy
import shutil
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest

from ringreduce.backend import env_rendezvous
from tests.forked import forked
from tests.frameworks.torch.groups import on_process_group
from tests.processes import free_port

pytestmark = pytest.mark.timeout(400)
PATIENCE = 180.0  # seconds; several interpreters that import torch take long on a machine that is busy

# One write for a line: the launcher may join what its ranks write.
SCRIPT = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("ringreduce")
x = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(x)
os.write(1, f"sum {x.tolist()} world {dist.get_world_size()}\\n".encode())
dist.destroy_process_group()
"""
ANSWER = "sum [3.0, 3.0, 3.0] world 2"
LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_", "OMPI_", "PMI_", "PMIX_", "MPI_", "SLURM_", "TORCHELASTIC")


def bare(**more: str) -> dict[str, str]:
    """The environment without what a launcher may have put there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)} | more


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env=bare(**environment), capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


# --- found without an import ----------------------------------------------------------------------------------


def test_the_name_is_known_once_torch_is_imported():
    run = python("import torch, torch.distributed as d; print(d.Backend('ringreduce'), d.Backend.RINGREDUCE)")
    assert run.stdout.split() == ["ringreduce", "ringreduce"], run.stderr


TIMED = """
import time, torch
from importlib.metadata import entry_points
(ours,) = (one for one in entry_points(group="torch.backends") if one.name == "ringreduce")
start = time.thread_time()
ours.load()()
print(time.thread_time() - start)
assert "RINGREDUCE" in torch.distributed.Backend._plugins
"""


@pytest.mark.slow
def test_torch_is_imported_no_later_for_it():
    """Less than 5 ms of the processor's time, of which other processes take nothing but the caches."""
    runs = [python(TIMED, TORCH_DEVICE_BACKEND_AUTOLOAD="0") for _ in range(5)]
    assert not [run.stderr for run in runs if run.returncode]
    assert min(float(run.stdout) for run in runs) < 0.005


def test_registering_imports_neither_the_engine_nor_numpy():
    code = "import sys, ringreduce.backend; print(sorted(m for m in sys.modules if m.startswith(('ring', 'numpy'))))"
    folders = "'ringreduce.doors', 'ringreduce.frameworks', 'ringreduce.frameworks.torch'"
    assert python(code).stdout.strip() == f"['ringreduce', 'ringreduce.backend', {folders}]"


@pytest.mark.slow
def test_torch_is_imported_although_registering_fails():
    code = """
import ringreduce.backend
def fail(): raise OSError("no such thing")
ringreduce.backend._register = fail
import torch
print(torch.ones(2).sum().item(), hasattr(torch.distributed.Backend, "RINGREDUCE"))
"""
    run = python(code)
    assert run.stdout.split() == ["2.0", "False"], run.stderr
    assert "UserWarning: ringreduce cannot register its backend with torch.distributed" in run.stderr
    assert "OSError: no such thing" in run.stderr


SERVED = """
import torch, torch.distributed as dist

def served(name):
    return dist.BackendConfig(dist.Backend(name)).get_device_backend_map()

print(served("ringreduce"), served("cpu:gloo,cuda:ringreduce"))
torch.cuda.device_count = lambda: 2  # after the import, as CUDA_VISIBLE_DEVICES may change it
print(served("ringreduce"), torch.cuda.is_initialized())
"""


@pytest.mark.slow
def test_the_name_alone_stands_for_gpus_only_where_there_are_any():
    run = python(SERVED, CUDA_VISIBLE_DEVICES="")
    both = dict.fromkeys(("cpu", "cuda"), "ringreduce")
    assert run.stdout.splitlines() == [
        f"{ {'cpu': 'ringreduce'} } { {'cpu': 'gloo', 'cuda': 'ringreduce'} }",
        f"{both} False",
    ], run.stderr


def _preferred():
    """What torch's code asks that would rather use a GPU's memory."""
    import torch
    import torch.distributed as dist
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu", "rank:1/cpu"])
    parts = sharded_tensor.full(spec, (4, 2), 3.0)
    whole = torch.zeros(4, 2) if dist.get_rank() == 0 else None
    parts.gather(dst=0, out=whole)
    objects = [None, None]
    dist.all_gather_object(objects, dist.get_rank())
    types = [device.type for device in dist.group.WORLD._device_types]
    return None if whole is None else whole.tolist(), objects, types


@pytest.mark.parametrize("backend", ["ringreduce", "cpu:ringreduce", "cpu:ringreduce,cuda:ringreduce"])
def test_a_rank_without_a_gpu_is_not_asked_for_one(backend):
    types = ["cpu", "cuda"] if "cuda" in backend else ["cpu"]
    found = on_process_group(2, _preferred, backend=backend)
    assert [(whole, objects, sorted(of)) for whole, objects, of in found] == [
        ([[3.0, 3.0]] * 4, [0, 1], types),
        (None, [0, 1], types),
    ]


# --- ranks that a launcher has started ------------------------------------------------------------------------


def launch(script, environments):
    """Runs the script in two processes, forked so that each need not import torch; what each has printed."""
    import torch.distributed  # noqa: F401

    def main() -> None:
        runpy.run_path(str(script))

    with mock.patch.dict(os.environ, bare(), clear=True):
        ranks = forked(main, [str(script)], environments)
    assert [rank.stderr for rank in ranks if rank.returncode] == []
    return [rank.stdout.strip() for rank in ranks]


PORT_OF_BOTH = str(free_port())
HYDRA, OF_HYDRA = socket.socketpair()  # this process, an ancestor of the ranks, is at the other end


def as_launched(launcher: str, rank: int, job: str) -> dict[str, str]:
    """What it puts into the environment of a rank of two."""
    return {
        "plain": {
            "RANK": f"{rank}",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": PORT_OF_BOTH,
        },
        "openmpi": {
            "OMPI_COMM_WORLD_RANK": f"{rank}",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": job,
        },
        "hydra": {
            "PMI_RANK": f"{rank}",
            "PMI_SIZE": "2",
            "MPI_LOCALNRANKS": "2",
            "PMI_FD": f"{OF_HYDRA.fileno()}",
        },
        "slurm": {
            "SLURM_PROCID": f"{rank}",
            "SLURM_NTASKS": "2",
            "SLURM_JOB_ID": job,
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_NODES": "1",
        },
    }[launcher]


@pytest.mark.parametrize("launcher", ["plain", "openmpi", "hydra", "slurm"])
def test_ranks_meet_by_the_variables_of(launcher, script):
    printed = launch(script, [as_launched(launcher, rank, f"job-{os.getpid()}") for rank in range(2)])
    assert printed == [ANSWER, ANSWER]


@pytest.mark.parametrize(
    ("launcher", "more"),
    [
        ("openmpi", {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}),
        ("hydra", {"MPI_LOCALNRANKS": "1"}),
        ("slurm", {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "localhost"}),
    ],
)
def test_ranks_of_several_hosts_meet_where_init_would(launcher, more, script):
    """At the place that is named or, under Slurm, that follows from the job."""
    place = {} if launcher == "slurm" else {"RINGREDUCE_RENDEZVOUS": f"127.0.0.1:{free_port()}"}
    more = more | place | {"RINGREDUCE_SECRET": "a test's"}
    printed = launch(script, [as_launched(launcher, rank, f"{os.getpid()}") | more for rank in range(2)])
    assert printed == [ANSWER, ANSWER]


PORT = """
import torch.distributed as dist

dist.init_process_group("ringreduce")
store = dist.distributed_c10d._get_default_store()
while hasattr(store, "underlying_store"):
    store = store.underlying_store
print(store.port)
dist.barrier()
dist.destroy_process_group()
"""


def test_the_masters_address_is_honoured(script):
    script.write_text(PORT)
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    printed = launch(script, [as_launched("openmpi", rank, "honoured") | given for rank in range(2)])
    assert printed == [given["MASTER_PORT"]] * 2


@pytest.mark.slow  # the commands of docs/running.md have one
def test_torchrun(script):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    run = subprocess.run(words, env=bare(), capture_output=True, text=True, timeout=PATIENCE)
    assert run.stdout.splitlines() == [ANSWER, ANSWER], run.stderr


def mpirun() -> str | None:
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


@pytest.mark.slow
@pytest.mark.skipif(mpirun() is None, reason="there is no mpirun")
def test_mpirun(script):
    environment = bare(
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
    )
    words = [mpirun(), "-n", "2", sys.executable, str(script)]
    run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert [line for line in run.stdout.splitlines() if line] == [ANSWER, ANSWER], run.stderr


# --- when torch's own rendezvous is left alone ----------------------------------------------------------------


@pytest.fixture
def ask(monkeypatch):
    """Asks the extended handler in an environment; what torch's handler was given, or None if it was not asked."""

    def asked(environment: dict[str, str], url: str = "env://"):
        for name in list(os.environ):
            if name.startswith(LAUNCHERS):
                monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        given = []

        def torchs(url, **others):
            given.append((url, others))
            return iter(())

        for _ in env_rendezvous.extended(torchs)(url, timeout=timedelta(seconds=1)):
            pass
        ((asked_url, others),) = given
        assert others == {"timeout": timedelta(seconds=1)}
        return asked_url

    return asked


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="no launcher"),
        pytest.param(as_launched("plain", 0, ""), id="torchrun"),
        pytest.param({"RANK": "1"} | as_launched("openmpi", 1, ""), id="a rank without a world"),
        pytest.param(as_launched("plain", 1, "") | as_launched("openmpi", 0, ""), id="both"),
        pytest.param({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}, id="a batch script"),
    ],
)
def test_torch_is_asked(ask, environment):
    assert ask(environment) == "env://"


def test_torch_is_asked_where_the_script_says_which_rank_it_is(ask):
    assert ask(as_launched("openmpi", 1, ""), "env://?rank=0&world_size=1") == "env://?rank=0&world_size=1"


@pytest.mark.parametrize("given", [{"MASTER_ADDR": "there", "MASTER_PORT": "1"}, {"MASTER_PORT": "1"}])
def test_torch_is_told_the_rank(ask, given):
    asked = ask(as_launched("openmpi", 1, "") | given, "env://?use_libuv=0")
    assert asked == "env://?use_libuv=0&rank=1&world_size=2"
    assert ask(as_launched("hydra", 1, "") | given) == "env://?rank=1&world_size=2"


def test_a_rank_that_never_comes_is_named(ask):
    with pytest.raises(TimeoutError, match=r"rank 0 timed out waiting for ranks \[1\] to start"):
        ask(as_launched("openmpi", 0, f"alone-{os.getpid()}"))


# --- the log ----------------------------------------------------------------------------------------------------

WAITS = """
import time
import torch.distributed as dist

dist.init_process_group("ringreduce")
time.sleep(7 * dist.get_rank())
dist.new_group([0, 1])
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_group_says_whom_it_waits_for_and_what_was_chosen(script):
    script.write_text(WAITS)
    first, second = [
        subprocess.Popen(
            [sys.executable, str(script)], env=bare(**as_launched("plain", rank, ""), RINGREDUCE_LOG="info"),
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    text = first.communicate(timeout=PATIENCE)[1]
    assert "ringreduce[rank 0] info: waits for rank 1 to join the process group\n" in text
    assert "ringreduce[rank 0] info: a group of 2 ranks over " in text
    assert "ringreduce[rank 0] info: the group is closed\n" in text
    assert "ringreduce[" not in second.communicate(timeout=PATIENCE)[1]  # torch itself may say something
