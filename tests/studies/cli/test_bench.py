"""The benchmark's output, on tiny runs with real ranks."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringreduce
from ringreduce.bench import facts as read
from ringreduce.bench import plot, problem, protocol
from ringreduce.bench.ours import ours
from ringreduce.bench.results import bus_factor, mode_of
from ringreduce.cli import main
from ringreduce.text import byte_count
from tests.conftest import slowly
from tests.processes import free_port

ROOT = Path(__file__).resolve().parents[3]
QUICK = ["bench", "-n", "2", "--sizes", "16,4K", "--budget", "0.01", "--peers", "none"]


def bench(capsys: pytest.CaptureFixture[str], *options: str, status: int = 0) -> str:
    assert main([*QUICK, *options]) == status
    return capsys.readouterr().out


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    out = bench(capsys, "-a", "auto,ring")
    rows = [line.split() for line in out.splitlines() if not line.lstrip().startswith("#")]
    assert [(row[0], row[1], row[2], row[3], row[4]) for row in rows] == [
        ("16", "4", "float32", "sum", "auto"),
        ("16", "4", "float32", "sum", "ring"),
        ("4096", "1024", "float32", "sum", "auto"),
        ("4096", "1024", "float32", "sum", "ring"),
    ]
    assert [row for row in rows if float(row[5]) <= 0 or row[9] != "0"] == []
    assert [row for row in rows if int(row[10]) < 0] == []  # 0 per cent of a call that was held up
    assert (
        "exchange between two cores" in out and "other programs took" in out and "Wrong elements: 0 OK" in out
    )


def test_wire(capsys: pytest.CaptureFixture[str]) -> None:
    out = bench(capsys, "-a", "auto,ring+shared", "--wire", "int8,bf16", "--no-floor")
    names = [line.split()[4] for line in out.splitlines() if not line.lstrip().startswith("#")]
    asked = ["auto", "auto+int8", "auto+bf16", "ring+shared", "ring+int8+shared", "ring+bf16+shared"]
    assert names == 2 * asked
    assert "Wrong elements: 0 OK" in out
    assert main([*QUICK, "--wire", "int4"]) != 0
    assert "there is no format 'int4'" in capsys.readouterr().err


def test_transports(capsys: pytest.CaptureFixture[str]) -> None:
    out = bench(capsys, "-a", "auto,ring+shared", "--transport", "tcp,shm+tcp", "--no-floor")
    names = [line.split()[4] for line in out.splitlines() if not line.lstrip().startswith("#")]
    assert names == 2 * ["auto@tcp", "ring+shared@tcp", "auto@shm+tcp", "ring+shared@shm+tcp"]
    assert "Wrong elements: 0 OK" in out
    assert main([*QUICK, "--transport", "pigeon"]) != 0
    assert "there is no 'pigeon'" in capsys.readouterr().err


def test_results_that_are_rounded_may_be_off_by_so_much_and_no_more() -> None:
    comm = ringreduce.local_group(1)[0]
    library, problem = ours(comm, "auto", wire="int8"), protocol.Problem("all_reduce", 4000)
    case = protocol.Case(library, protocol.Buffers(library, problem))
    case.sample(1, 0)
    assert case.wrong(1, 0) == 0
    limit = 255 * library.tolerance
    case.results[0][:3] += np.array([0.9, -0.9, 1.1], np.float32) * np.float32(limit)
    case.results[0][9] = np.nan
    assert case.wrong(1, 0) == 2
    comm.close()


def test_osu(capsys: pytest.CaptureFixture[str]) -> None:
    out = bench(capsys, "--format", "osu", "-c", "all_reduce,all_gather")
    titles = [line for line in out.splitlines() if line.startswith("# Size")]
    figures = [line.split() for line in out.splitlines() if line and not line.startswith("#")]
    columns = "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
    assert titles == [columns, columns]
    assert [int(row[0]) for row in figures] == [16, 4096, 16, 4096]
    assert all(0 < float(least) <= float(us) <= float(most) for _, us, least, most, _ in figures)


def test_osu_of_a_barrier_and_of_messages(capsys: pytest.CaptureFixture[str]) -> None:
    out = bench(capsys, "--format", "osu", "-c", "barrier,send_recv,send,send_pairs")
    titles = [line.split("  ")[0] for line in out.splitlines() if line.startswith(("# Size", "# Avg"))]
    figures = [line.split() for line in out.splitlines() if line and not line.startswith("#")]
    assert [title.split()[1] for title in titles] == ["Avg", "Size", "Size", "Size"]
    assert [len(row) for row in figures] == [4, 5, 5, 2, 2, 3, 3]
    assert "Bandwidth (MB/s)" in out and "Messages/s" in out


def test_osu_times_are_each_ranks_own_average() -> None:
    """Rank 1 is in the call for 20 ms, the others are not: its own average shows, and so does theirs."""

    def late(comm: ringreduce.Communicator) -> dict[str, Any]:
        library = ours(comm, "auto")
        library.prepare = lambda problem, buffer: (lambda: time.sleep(0.02 * (comm.rank == 1)), buffer[:0])
        asked = protocol.Problem("send_recv", 8)  # in which rank 2 takes no part
        effort = protocol.Effort(iterations=2, warmup=1, batch=1, check=False)
        return protocol.measure(library, protocol.Buffers(library, asked), effort)

    row = ringreduce.run(late, 3)[0]
    assert row["max_us"] > 10_000 - 1 and row["min_us"] < row["max_us"] / 2
    assert row["avg_us"] == pytest.approx((row["min_us"] + row["max_us"]) / 2, rel=1e-3)
    assert row["batch"] == 1 and row["iterations"] == 2


def test_json_has_everything_with_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    # The forked ranks inherit a connection of this process, which is none of theirs.
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        everything = json.loads(bench(capsys, "--format", "json", "--out-of-place", "--memory", "shared"))
    facts = everything["facts"]
    assert facts["ranks"] == 2 and facts["cores"] >= 1 and facts["memory"] == "shared"
    assert facts["ringreduce"] == ringreduce.__version__ and not facts["in_place"]
    assert facts["transport"] == "shm" and facts["interface"] == "none" and facts["host"] == platform.node()
    cores = sorted(os.sched_getaffinity(0))
    assert facts["rank_cores"] == [[cores[rank % len(cores)]] for rank in range(2)]
    assert facts["governor"] and facts["mode"] and 0 <= facts["busy_percent"] <= 100
    assert [(row["kind"], row["bytes"]) for row in everything["rows"]] == [
        ("ours", 16), ("floor", 16), ("ours", 4096), ("floor", 4096),
    ]  # fmt: skip
    for row in everything["rows"]:
        assert row["wrong"] == 0 and row["p25_us"] <= row["median_us"] <= row["p75_us"]
        assert row["algbw_gbs"] == pytest.approx(row["bytes"] / row["median_us"] / 1e3, rel=0.01, abs=1e-4)


def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    text = bench(capsys, "--format", "csv", "--op", "max", "--dtype", "int32", "--async", "--no-floor")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["library"], row["bytes"], row["count"]) for row in rows] == [
        ("auto", "16", "4"), ("auto", "4096", "1024"),
    ]  # fmt: skip
    assert all(row["op"] == "max" and row["dtype"] == "int32" and row["ranks"] == "2" for row in rows)


@pytest.mark.parametrize("place", ["--in-place", *slowly("--out-of-place")])
def test_every_collective_is_right(capsys: pytest.CaptureFixture[str], place: str) -> None:
    every = ",".join([*problem.FACTS, *problem.UNEVEN])
    out = json.loads(bench(capsys, "-n", "3", "-c", every, place, "--format", "json", "--no-floor"))
    assert {row["collective"] for row in out["rows"]} == set(every.split(","))
    assert all(row["wrong"] == 0 and row["bytes"] % 4 == 0 for row in out["rows"])


@pytest.mark.parametrize("peer", ["gloo", *slowly("mpich")])
def test_every_collective_of_the_peers_is_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, peer: str
) -> None:
    home = ROOT / ".venv-mpich"
    if peer == "gloo":
        pytest.importorskip("torch")
        from ringreduce.bench.gloo import UNTIMED as lacks
    elif not (home / ".ready").exists():
        pytest.skip("make bench-peers installs MPICH")
    else:
        monkeypatch.setenv("RINGREDUCE_BENCH_MPI", str(home))
        lacks = ()
    every = [name for name in (*problem.FACTS, *problem.UNEVEN) if name not in lacks]
    options = ("-n", "3", "-c", ",".join(every), "--peers", peer, "--no-floor", "--launches", "1")
    rows = json.loads(bench(capsys, *options, "--format", "json", "--root", "1", "--sizes", "48"))["rows"]
    found = {
        row["collective"]: row.get("wrong", row.get("problem")) for row in rows if row["library"] == peer
    }
    assert found == dict.fromkeys(every, 0)


def test_a_wrong_result_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = ringreduce.Communicator.all_reduce

    def wrong(comm: ringreduce.Communicator, x: Any, *args: Any, **kwargs: Any) -> Any:
        result = right(comm, x, *args, **kwargs)
        if comm.rank == 1 and result.size == 1024:
            result[1000] += 1  # one element of one rank
        return result

    monkeypatch.setattr(ringreduce.Communicator, "all_reduce", wrong)
    out = bench(capsys, "--iterations", "2", status=1)
    assert "FAILED" in out
    counts = [line.split()[9] for line in out.splitlines() if not line.lstrip().startswith("#")]
    assert counts[0] == "0" and int(counts[1]) > 0
    assert "N/A" in bench(capsys, "--no-check")


def test_messages_are_right_and_a_barrier_has_no_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ["barrier", "send_recv", "send", "send_recv_pairs", "send_pairs"]
    rows = json.loads(bench(capsys, "-n", "5", "-c", ",".join(kinds), "--format", "json"))["rows"]
    own = [row for row in rows if row["kind"] == "ours"]
    assert [(row["collective"], row["bytes"]) for row in own] == [
        ("barrier", 0), *((kind, size) for kind in kinds[1:] for size in (16, 4096)),
    ]  # fmt: skip
    assert all(row["wrong"] == 0 and row["median_us"] > 0 for row in rows)
    assert own[0]["busbw_gbs"] is None and own[1]["busbw_gbs"] == own[1]["algbw_gbs"]
    out = bench(capsys, "-c", "barrier,send_recv", "-a", "auto+shared", "--async")
    assert "send_recv: algbw = size of a message / time; busbw = algbw" in out


def test_a_message_that_did_not_come_is_found() -> None:
    def forgetful(comm: ringreduce.Communicator) -> tuple[int, int]:
        library, asked = ours(comm, "auto"), protocol.Problem("send", 400)
        case = protocol.Case(library, protocol.Buffers(library, asked))
        case.sample(1, 0)
        return case.wrong(1, 0), case.wrong(1, 1)

    (sender, receiver, idle) = ringreduce.run(forgetful, 3)
    assert sender == idle == (0, 0) and receiver[0] == 0 and receiver[1] > 90


def test_bandwidths_are_defined_where_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    out = bench(capsys, "-c", "all_reduce,all_gather,broadcast")
    assert "# all_reduce: algbw = size / time; busbw = algbw * 2 (n - 1) / n, n ranks" in out
    assert "# all_gather: algbw = size / time; busbw = algbw * (n - 1) / n, n ranks" in out
    assert "# broadcast: algbw = size / time; busbw = algbw, n ranks" in out


@pytest.mark.parametrize("root", ["2", *slowly("0")])
def test_roots(capsys: pytest.CaptureFixture[str], root: str) -> None:
    kinds = "broadcast,reduce,gather,scatter"
    out = json.loads(bench(capsys, "-n", "3", "-c", kinds, "--root", root, "--format", "json", "--no-floor"))
    assert [row["wrong"] for row in out["rows"]] == [0] * 8 and out["facts"]["root"] == int(root)


OWN = """
from ringreduce.schedules import Recv, Round, Schedule, Send, register

def pairs(world, rank):
    other = world - 1 - rank
    return Schedule("all_reduce", world, rank, 1, [Round([Send([0], [other])], [Recv([0], other, reduce=True)])])

def star(world, rank, root):
    others = [each for each in range(world) if each != root]
    rounds = [Round([Send([0], others)])] if rank == root else [Round(recvs=[Recv([0], root)])]
    return Schedule("broadcast", world, rank, 1, rounds, root)

registered = register("pairs of a file", pairs)

def nothing(world, rank):
    return Schedule("all_reduce", world, rank, 1)

def raises(world, rank):
    raise RuntimeError("on two\\nlines")

def text(world, rank):
    return "a schedule"
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "some@place+int8" / "my.py"
    path.parent.mkdir()
    path.write_text(OWN)
    return str(path)


def test_algorithms_of_a_file(capsys: pytest.CaptureFixture[str], own: str) -> None:
    rows = json.loads(
        bench(
            capsys, "-a", f"{own}:pairs,ring,{own}:registered+shared,{own}:pairs@tcp,auto", "--format", "json"
        )
    )["rows"]
    names = [row["library"] for row in rows if row["bytes"] == 16 and row["kind"] == "ours"]
    assert names == [f"{own}:pairs", "ring", f"{own}:registered+shared", f"{own}:pairs@tcp", "auto"]
    assert all(row["wrong"] == 0 for row in rows)
    star = bench(capsys, "-n", "3", "-c", "broadcast", "--root", "1", "-a", f"{own}:star", "--format", "json")
    assert all(row["wrong"] == 0 for row in json.loads(star)["rows"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{own}:planet", "has no function called 'planet'"),
        ("{own}x.py:pairs", "there is no such file"),
        ("{own}:nothing", "is wrong for 2 ranks: "),
        ("{own}:raises", "raised RuntimeError: on two lines"),
        ("{own}:text", "must return a Schedule, not str"),
    ],
)
def test_files_and_functions_that_are_not_there_or_are_wrong(
    capsys: pytest.CaptureFixture[str], own: str, name: str, message: str
) -> None:
    assert main([*QUICK, "-a", f"auto,{name.format(own=own)}"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("ringreduce: ") and said.count("\n") == 1


def test_where_nothing_could_be_measured_the_status_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "-a", "auto+int8", "--dtype", "int32"]) == 1
    assert "ringreduce: nothing was measured: auto+int8: wire 'int8' takes float32" in capsys.readouterr().err


def test_the_transport_and_the_interface_are_those_really_used(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(bench(capsys, "--transport", "tcp", "--format", "json", "--no-floor"))["facts"]
    assert facts["transport"] == "tcp"
    assert facts["interface"] in [name for _, name in socket.if_nameindex()]


def test_facts_of_a_host(tmp_path: Path) -> None:
    for core, name in [(0, "performance"), (1, "powersave"), (2, "powersave")]:
        folder = tmp_path / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{name}\n")
    assert read.governor([1, 2], tmp_path) == "powersave"
    assert read.governor([0, 1], tmp_path) == "performance, powersave"
    assert read.governor([3], tmp_path) == "unknown"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert "lo" in read.interfaces()


def test_under_a_launcher_rank_0_prints() -> None:
    ranks, port = [], str(free_port())
    for rank in range(2):
        env = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
            "MASTER_PORT": port, "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        command = [sys.executable, "-m", "ringreduce", "bench", *QUICK[3:], "--format", "json"]
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True))
    out = [rank.communicate(timeout=200)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    facts = json.loads(out[0])["facts"]
    assert facts["launcher"] == "torchrun" and facts["ranks"] == 2 and out[1] == ""
    assert facts["transport"] == "shm" and facts["rank_cores"] == [sorted(os.sched_getaffinity(0))] * 2


def test_what_reproducible_results_cost(capsys: pytest.CaptureFixture[str]) -> None:
    out = bench(capsys, "--reproducible", "--launches", "2")
    rows = [line.split() for line in out.splitlines()]
    figures = [row for row in rows if row[1:2] in (["B"], ["KiB"])]
    assert [row[:2] for row in figures] == [["16", "B"], ["4", "KiB"]] * 2
    assert {len(row) for row in figures} == {7}
    for _, _, auto, _, reproducible, _, ratio in figures:  # as rounded: 0.00 if auto was interrupted for long
        assert float(ratio) == pytest.approx(float(reproducible) / float(auto), rel=0.06, abs=0.006)
    assert "all_reduce: " in out and "reduce_scatter: " in out and "2 ranks" in out


def test_reproducible_results_are_compared_with_the_usual_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGREDUCE_REPRODUCIBLE", "1")
    assert main([*QUICK, "--reproducible"]) == 2
    assert "unset RINGREDUCE_REPRODUCIBLE" in capsys.readouterr().err


def test_the_plot_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bench(capsys, "-a", "auto,auto+shared,ring", "--plot", str(tmp_path / "new" / "a.png"))
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*QUICK, "--plot", "a.png"]) == 2
    assert "ringreduce[plot]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-c", "all_reduced"], "no collective is called 'all_reduced'"),
        (["-a", "rings"], "no algorithm is called 'rings'"),
        (["--peers", "nccl"], "there is no peer 'nccl'"),
        (["--sizes", "4X"], "'4X' is not a number of bytes"),
        (["--op", "bxor"], "is not defined for float32; choose from int64"),
        (["-n", "0"], "at least 1"),
        (["--min", "8", "--factor", "1", "--sizes", ""], "--factor"),
        (["-c", "broadcast", "--root", "2"], "--root must be a rank from 0 to 1, not 2"),
        (["--root", "-1"], "--root must be"),
        (["-n", "1", "-c", "send_recv"], "send_recv needs at least 2 ranks"),
        (["-c", "barrier", "-a", "ring"], "no algorithm is called 'ring'"),
        (["--iterations", "0"], "--iterations must be at least 1"),
        (["--launches", "-1"], "--launches must be at least 1"),
        (["--budget", "nan"], "--budget must be a number of seconds"),
        (["-c", "barrier", "--plot", "a.png"], "--plot: a barrier has no sizes"),
        (["--sizes", "99999G"], "Unable to allocate"),
    ],
)
def test_bad_options_are_named(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main([*QUICK, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_dtype_that_numpy_lacks_names_the_package_that_has_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for dtype in ("bfloat16", "float8_e4m3fn"):
        assert main([*QUICK, "--dtype", dtype]) == 2
        said = capsys.readouterr().err
        assert said == f"ringreduce: {dtype} needs ml_dtypes: pip install 'ringreduce[bench]'\n"
    assert main([*QUICK, "--dtype", "float16"]) == 0


def test_what_ranks_cannot_have_takes_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main([*QUICK, "--transport", "mpi"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ringreduce: ") and said.count("\n") == 1 and "MPI" in said


def test_explain_and_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--bytes", "8,64M", "-n", "4"]) == 0
    said = capsys.readouterr().out
    assert "slices of" in said and "64M on 4 ranks over shm: " in said
    assert main(["explain", "--bytes", "8,64M", "-n", "4", "--transport", "tcp"]) == 0
    over_tcp = capsys.readouterr().out
    assert "64M on 4 ranks over tcp: " in over_tcp and over_tcp != said.replace("over shm", "over tcp")
    assert main(["explain", "--bytes", "8", "--transport", "tcp", "--model", "mine.json"]) == 2
    assert "--model predicts only for --transport shm, not " in capsys.readouterr().err
    assert main(["algorithms", "-c", "all_reduce", "-n", "4"]) == 0
    assert "ring" in capsys.readouterr().out
    assert main(["explain", "--bytes", "8", "-c", "nothing"]) == 2


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("reduce_scatter", 4) == bus_factor("all_gather", 4) == 0.75
    assert bus_factor("broadcast", 4) == bus_factor("reduce", 4) == 1
    assert bus_factor("all_to_all", 2) == 0.5


def test_modes() -> None:
    assert [mode_of(50, 60), mode_of(250, 240), mode_of(50, 250), mode_of(None, None)] == [
        "near", "far", "near-far", "unknown",
    ]  # fmt: skip


def test_sizes_round_up_to_whole_blocks() -> None:
    assert byte_count("8K") == 8192 and byte_count("1g") == 1 << 30


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint8", "bool"])
@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max"])
def test_values_are_exact_in_any_order(dtype: str, op: str) -> None:
    if dtype == "bool" and op == "avg":
        return
    for ranks in (2, 5, 8):
        fills = [problem.fill(rank, 500, 1, dtype, op, ranks) for rank in range(ranks)]
        forward, backward = fills[0], fills[-1]
        for k in range(1, ranks):
            forward = problem.COMBINE[op](forward, fills[k])
            backward = problem.COMBINE[op](backward, fills[-1 - k])
        exact = [values.astype(np.float64) for values in fills]
        wide = exact[0]
        for values in exact[1:]:
            wide = problem.COMBINE[op](wide, values)
        assert np.array_equal(forward, backward)
        assert dtype == "bool" or np.array_equal(forward.astype(np.float64), wide)


def test_the_floor_touches_every_element() -> None:
    def scaled(comm: ringreduce.Communicator) -> list[float]:
        from ringreduce.bench.ours import floor

        buffer = np.arange(100, dtype=np.float32)
        call, result = floor(comm).prepare(protocol.Problem("scale", 400), buffer)
        call()
        return list(map(float, result))

    assert ringreduce.run(scaled, 1)[0] == [2.0 * i for i in range(100)]


def test_looks_differ() -> None:
    bold = plot.style("auto", "ours", 0)["linewidth"]
    assert bold > plot.style("ring", "ours", 1)["linewidth"]
    assert plot.style("floor", "floor", 0)["linestyle"] == ":"


def test_a_reader_that_has_seen_enough_ends_a_command_without_a_traceback():
    command = [sys.executable, "-m", "ringreduce", "algorithms"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=200)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_what_other_programs_take_of_the_cores() -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        busy = [read.busy_share() for _ in range(5)]
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert 0.9 < max(busy) <= 1
