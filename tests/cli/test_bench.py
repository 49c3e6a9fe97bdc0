"""The benchmark's output, on tiny runs with real ranks."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringreduce
from ringreduce.bench import options as bench_options
from ringreduce.bench import plot, protocol
from ringreduce.bench.ours import ours
from ringreduce.bench.results import bus_factor, mode_of
from ringreduce.cli import main

ROOT = Path(__file__).resolve().parents[2]
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
    assert all(float(row[5]) > 0 and row[9] == "0" and float(row[10]) > 0 for row in rows)
    assert "exchange between two cores" in out and "Wrong elements: 0 OK" in out


def test_wire(capsys: pytest.CaptureFixture[str]) -> None:
    out = bench(capsys, "-a", "auto,ring+shared", "--wire", "int8,bf16", "--no-floor")
    names = [line.split()[4] for line in out.splitlines() if not line.lstrip().startswith("#")]
    asked = ["auto", "auto+int8", "auto+bf16", "ring+shared", "ring+int8+shared", "ring+bf16+shared"]
    assert names == 2 * asked
    assert "Wrong elements: 0 OK" in out
    bench(capsys, "-a", "auto+int8", "--dtype", "int32", status=0)
    assert main([*QUICK, "--wire", "int4"]) != 0
    assert "there is no 'int4'" in capsys.readouterr().err


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
    assert len(titles) == 2 and all("Avg Latency(us)" in title for title in titles)
    assert [int(size) for size, _ in figures] == [16, 4096, 16, 4096]
    assert all(float(us) > 0 for _, us in figures)


def test_json_has_everything_with_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    everything = json.loads(bench(capsys, "--format", "json", "--out-of-place", "--memory", "shared"))
    facts = everything["facts"]
    assert facts["ranks"] == 2 and facts["cores"] >= 1 and facts["memory"] == "shared"
    assert facts["ringreduce"] == ringreduce.__version__ and not facts["in_place"]
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


@pytest.mark.parametrize("place", ["--in-place", "--out-of-place"])
def test_every_collective_is_right(capsys: pytest.CaptureFixture[str], place: str) -> None:
    every = "all_reduce,reduce_scatter,all_gather,broadcast,reduce,gather,scatter,all_to_all"
    out = json.loads(bench(capsys, "-n", "3", "-c", every, place, "--format", "json", "--no-floor"))
    assert {row["collective"] for row in out["rows"]} == set(every.split(","))
    assert all(row["wrong"] == 0 and row["bytes"] % 4 == 0 for row in out["rows"])


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


def test_under_a_launcher_rank_0_prints() -> None:
    ranks = []
    for rank in range(2):
        env = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(os.getpid()), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        command = [sys.executable, "-m", "ringreduce", "bench", *QUICK[3:], "--format", "json"]
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True))
    out = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    facts = json.loads(out[0])["facts"]
    assert facts["launcher"] == "torchrun" and facts["ranks"] == 2 and out[1] == ""


def test_what_reproducible_results_cost(capsys: pytest.CaptureFixture[str]) -> None:
    out = bench(capsys, "--reproducible", "--launches", "2")
    rows = [line.split() for line in out.splitlines()]
    figures = [row for row in rows if row[1:2] in (["B"], ["KiB"])]
    assert [row[:2] for row in figures] == [["16", "B"], ["4", "KiB"]] * 2
    assert all(float(row[-1]) > 0 and len(row) == 7 for row in figures)
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
        (["--peers", "nccl"], "nobody is called 'nccl'"),
        (["--sizes", "4X"], "'4X' is no number of bytes"),
        (["--op", "bxor"], "takes integers"),
        (["-n", "0"], "at least 1"),
        (["--min", "8", "--factor", "1", "--sizes", ""], "--factor"),
    ],
)
def test_bad_options_are_named(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main([*QUICK, *options]) == 2
    assert message in capsys.readouterr().err


def test_explain_and_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--bytes", "8,64M", "-n", "4"]) == 0
    assert "slices of" in capsys.readouterr().out
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
    assert bench_options.byte_count("8K") == 8192 and bench_options.byte_count("1g") == 1 << 30


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint8", "bool"])
@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max"])
def test_values_are_exact_in_any_order(dtype: str, op: str) -> None:
    if dtype == "bool" and op == "avg":
        return
    for ranks in (2, 5, 8):
        fills = [protocol.fill(rank, 500, 1, dtype, op, ranks) for rank in range(ranks)]
        forward, backward = fills[0], fills[-1]
        for k in range(1, ranks):
            forward = protocol.COMBINE[op](forward, fills[k])
            backward = protocol.COMBINE[op](backward, fills[-1 - k])
        exact = [values.astype(np.float64) for values in fills]
        wide = exact[0]
        for values in exact[1:]:
            wide = protocol.COMBINE[op](wide, values)
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
