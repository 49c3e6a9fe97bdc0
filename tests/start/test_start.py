"""ringreduce run: programs as ranks, which end together."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from ringreduce.cli import main
from ringreduce.hosts import HostSlots, hosts_named
from tests.processes import gone

RUN = [sys.executable, "-m", "ringreduce", "run"]
PROGRAM = """
import os, sys
import numpy as np
import ringreduce
with ringreduce.init(timeout=30) as comm:
    x = np.full(10, comm.rank)
    comm.all_reduce(x)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    found = [comm.rank, comm.size, x[0], [os.environ[name] for name in names], sys.argv[1:]]
    sys.stdout.write(" ".join(map(str, found)) + "\\n")
"""
# Rank 1 says where it is, and fails when the others are there, too.
FAILING = """
import os, sys, time
open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").write(str(os.getpid()))
while os.environ["RANK"] != "1" or len(os.listdir(sys.argv[1])) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
sys.exit(7)
"""
# Runs what ssh would run on the other host, which is this one.
SSH = '#!/bin/sh\nhost=$1; shift\necho $host >> {log}\nexec sh -c "$*"\n'


def ran(*words, **options):
    return subprocess.run([*RUN, *map(str, words)], capture_output=True, text=True, timeout=200, **options)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def ssh(tmp_path):
    path = tmp_path / "ssh"
    path.write_text(SSH.format(log=tmp_path / "log"))
    path.chmod(0o755)
    return path


def lines_of(world, arguments, locals_, prefix=""):
    total = world * (world - 1) // 2
    return [
        prefix.format(rank) + f"{rank} {world} {total} ['{rank}', '{world}', '{local}', '{here}'] {arguments}"
        for rank, (local, here) in enumerate(locals_)
    ]


def test_ranks_of_this_host(program):
    done = ran("-n", 3, program, "--steps", "2", "-n", "5")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == lines_of(
        3, ["--steps", "2", "-n", "5"], [(r, 3) for r in range(3)]
    )


@pytest.mark.parametrize("words", [("-m",), ("--", "-m")])
def test_a_module(words, program):
    run = ran("-n", 1, "--no-bind", *words, program.stem, "-n", 3, cwd=program.parent)
    assert run.stdout.endswith("['-n', '3']\n"), run.stderr


def test_lines_can_begin_with_the_rank(program):
    done = ran("-n", 2, "--prefix", program)
    assert sorted(done.stdout.splitlines()) == lines_of(2, [], [(0, 2), (1, 2)], "[{}] ")
    done = ran("-n", 1, "--prefix", "sh", "-c", "printf 'no end'; echo error >&2")
    assert (
        sorted(done.stdout.splitlines()) == ["[0] error", "[0] no end"] or done.stdout == "[0] no enderror\n"
    )


def test_hosts(program, ssh, tmp_path):
    done = ran("--hosts", "127.0.0.1:2,localhost:1", "--ssh", ssh, program)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == lines_of(3, [], [(0, 2), (1, 2), (0, 1)])
    assert sorted((tmp_path / "log").read_text().split()) == ["127.0.0.1", "localhost"]
    done = ran("-n", 1, "--hosts", "localhost,localhost", "--ssh", ssh, program)
    assert sorted(done.stdout.splitlines()) == lines_of(2, [], [(0, 1), (0, 1)]), done.stderr


@pytest.mark.parametrize("where", [("-n", "3"), ("--hosts", "localhost:2,localhost:1")])
def test_the_first_that_fails_ends_all(where, ssh, tmp_path):
    program, folder = tmp_path / "failing.py", tmp_path / "pids"
    program.write_text(FAILING)
    folder.mkdir()
    done = ran(*where, "--ssh", ssh, program, folder)
    assert done.returncode == 7
    assert (
        "ringreduce: rank 1" in done.stderr and "exited with status 7; ending the other ranks" in done.stderr
    )
    assert all(gone(int(path.read_text())) for path in folder.iterdir()) and len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("where", [("-n", "2"), ("--hosts", "localhost,localhost", "-n", "1")])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(where, how, ssh, tmp_path):
    """Whether it is interrupted, terminated or killed; what ranks have started goes, too, unless it was killed."""
    folder = tmp_path / "pids"
    folder.mkdir()
    script = (
        f"sleep 100 & echo $$ > {folder}/$RANK.shell; [ {how} = 9 ] || echo $! > {folder}/$RANK.child; wait"
    )
    run = subprocess.Popen([*RUN, *where, "--ssh", str(ssh), "sh", "-c", script])
    wanted = 2 if how == signal.SIGKILL else 4
    end = time.monotonic() + 30
    while len([path for path in folder.iterdir() if path.read_text()]) < wanted:
        assert time.monotonic() < end and run.poll() is None
        time.sleep(0.02)
    run.send_signal(how)
    assert run.wait(30) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    pids = [int(path.read_text()) for path in folder.iterdir()]
    while not all(map(gone, pids)):
        assert time.monotonic() < end + 30
        time.sleep(0.02)


def test_nothing_is_left_of_a_start_that_is_interrupted(tmp_path):
    """By the first rank, long before the last has been started."""
    script = f"sleep 100 & echo $! > {tmp_path}/$RANK; [ $RANK = 0 ] && kill -INT $PPID; wait"
    assert ran("-n", 16, "sh", "-c", script).returncode == 130
    end = time.monotonic() + 30
    while not all(gone(int(path.read_text() or 0)) for path in tmp_path.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_reader_that_goes_away_ends_the_job(tmp_path):
    """Like head: without a word, and without ranks that are left."""
    script = f"echo $$ > {tmp_path}/$RANK; while :; do echo line || exit 1; done"
    with subprocess.Popen(
        [*RUN, "-n", "2", "--prefix", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout.readline().endswith(b"] line\n")
        while len([path for path in tmp_path.iterdir() if path.read_text()]) < 2:
            run.stdout.readline()
        run.stdout.close()
        assert run.stderr.read() == b"" and run.wait(60) == 128 + signal.SIGPIPE
    assert all(gone(int(path.read_text())) for path in tmp_path.iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can take a host's addresses away")
@pytest.mark.parametrize(("left", "transport"), [("::1", "shm"), ("::1", "tcp"), ("nothing", "shm")])
def test_a_host_without_ipv4(left, transport, program):
    up = "ip link set lo up && ip address delete 127.0.0.1/8 dev lo" if left == "::1" else "true"
    words = shlex.join([*RUN, "-n", "2", str(program)])
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", f"{up} && exec {words}"], capture_output=True, text=True, timeout=200,
        env={**os.environ, "RINGREDUCE_TRANSPORT": transport},
    )  # fmt: skip
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == lines_of(2, [], [(0, 2), (1, 2)])


def test_a_rank_that_is_killed():
    done = ran("-n", 1, "sh", "-c", "kill -9 $$")
    assert done.returncode == 137 and done.stderr == "ringreduce: rank 0 was killed by SIGKILL\n"


def test_a_signal_without_a_name():
    done = ran("-n", 1, "sh", "-c", "kill -40 $$")
    assert done.returncode == 168 and done.stderr == "ringreduce: rank 0 was killed by signal 40\n"


def test_ranks_get_cores_of_their_own():
    cores = len(os.sched_getaffinity(0))
    show = [
        "-c",
        "import os; os.write(1, f\"{len(os.sched_getaffinity(0))} {os.environ['OMP_NUM_THREADS']}\\n\".encode())",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    share = cores // 2 or cores
    assert (
        ran("-n", 2, sys.executable, *show, env=environment).stdout == f"{share} {max(cores // 2, 1)}\n" * 2
    )
    assert ran("-n", 2, "--no-bind", sys.executable, *show, env=environment).stdout == f"{cores} 1\n" * 2
    assert ran("-n", cores + 1, sys.executable, *show, env=environment).stdout == f"{cores} 1\n" * (cores + 1)


def test_hosts_named():
    assert hosts_named("a:2, user@b:4", None) == [HostSlots("a", 2), HostSlots("user@b", 4)]
    assert hosts_named("a,b", 3) == [HostSlots("a", 3), HostSlots("b", 3)]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ([], "name a program"),
        (["-n", "0", "x.py"], "-n must be at least 1, not 0"),
        (["-n", "99999999", "x.py"], "-n must be at most"),
        (["-n", "1", "--hosts", "a", "--ssh", "", "x.py"], "--ssh must be a command, but is empty"),
        (["-n", "1", "--hosts", "a", "--ssh", "'", "x.py"], '--ssh must be a command, not "\'"'),
        (["--hosts", "a", "x.py"], "--hosts: give the number of ranks on a"),
        (["--hosts", "a:0", "x.py"], "--hosts: 'a:0' is not a host"),
        (["--hosts", "a,,b", "-n", "1", "x.py"], "--hosts: '' is not a host"),
        (["-n", "1", "no-such-program"], "no-such-program: no such program"),
        (
            ["-n", "1", "--hosts", "a", "--ssh", "no-such-ssh", "x.py"],
            "no-such-ssh: no such program",
        ),
    ],
)
def test_errors_take_one_line(arguments, wrong, capsys):
    assert main(["run", *arguments]) == 2
    said = capsys.readouterr().err
    assert wrong in said and said.count("\n") == 1
