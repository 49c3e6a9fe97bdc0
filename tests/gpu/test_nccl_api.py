"""libringreduce_nccl.so, which programs load in place of libnccl.so.2: what it exports, a program of C that calls all
of it, and what goes wrong."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ringreduce.build import nccl_library
from ringreduce.cli import main

from . import nccl_api
from .emulated_nccl import EMULATED_NCCL
from .gpu_arrays import library, new_stream
from .limits import PROGRAM
from .nccl_api import (
    FLOAT32,
    INT32,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    PROD,
    REMOTE_ERROR,
    Failed,
    Rank,
    check,
    in_threads,
    nccl,
    ranks,
    unique_id,
)  # fmt: skip
from .probe import HAS_CARD
from .ranks import EMULATED_LIBRARY, ON_EITHER
from .test_hosts import answers

STAND_IN = nccl_library.STAND_IN
SERVED = [
    "AllGather", "AllReduce", "AlltoAll", "Bcast", "Broadcast", "CommAbort", "CommCount", "CommCuDevice",
    "CommDeregister", "CommDestroy", "CommFinalize", "CommGetAsyncError", "CommInitAll", "CommInitRank",
    "CommInitRankConfig", "CommInitRankScalable", "CommRegister", "CommSplit", "CommUserRank",
    "CommWindowDeregister", "CommWindowRegister", "Gather", "GetErrorString", "GetLastError", "GetUniqueId",
    "GetVersion", "GroupEnd", "GroupSimulateEnd", "GroupStart", "MemAlloc", "MemFree", "RedOpCreatePreMulSum",
    "RedOpDestroy", "Recv", "Reduce", "ReduceScatter", "Scatter", "Send",
]  # fmt: skip
HANDED_ON = [
    "CommMemStats", "CommQueryProperties", "CommResume", "CommRevoke", "CommShrink", "CommSuspend",
    "DevCommCreate", "DevCommDestroy", "GetLsaDevicePointer", "GetLsaMultimemDevicePointer",
    "GetPeerDevicePointer", "PutSignal", "Signal", "WaitSignal", "WinGetUserPtr",
]  # fmt: skip

pytestmark = [
    pytest.mark.skipif(not STAND_IN.exists(), reason="not built"),
    ON_EITHER,
]

emulated_only = pytest.mark.skipif(HAS_CARD, reason="it is not about the GPU")


# --- the library ----------------------------------------------------------------------------------------------


def tool(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# What libtorch_cuda.so needs to load (nm -D --undefined-only), of torch 2.11 and 2.13; then what one of them does not
# need, or what goes to the real NCCL.
SERVED_TO_TORCH = [
    "AllGather", "AllReduce", "AlltoAll", "Bcast", "Broadcast", "CommAbort", "CommCount", "CommDeregister",
    "CommDestroy", "CommFinalize", "CommGetAsyncError", "CommInitAll", "CommInitRank", "CommInitRankConfig",
    "CommInitRankScalable", "CommRegister", "CommSplit", "CommUserRank", "CommWindowDeregister",
    "CommWindowRegister", "GetErrorString", "GetLastError", "GetUniqueId", "GetVersion", "GroupEnd",
    "GroupSimulateEnd", "GroupStart", "MemAlloc", "MemFree", "Recv", "RedOpCreatePreMulSum", "RedOpDestroy",
    "Reduce", "ReduceScatter", "Send",
]  # fmt: skip
OTHERS_OF_TORCH = {
    "2.11": ["CommShrink", "DevCommCreate", "DevCommDestroy"],
    "2.13": [
        "CommMemStats", "CommResume", "CommShrink", "CommSuspend", "DevCommCreate", "DevCommDestroy",
        "GetLsaMultimemDevicePointer", "GetPeerDevicePointer", "PutSignal", "Signal", "WaitSignal",
    ],
}  # fmt: skip


@pytest.mark.parametrize("torch", OTHERS_OF_TORCH)
def test_it_has_what_torch_resolves(torch):
    assert not set(SERVED_TO_TORCH) - set(SERVED)
    assert not set(OTHERS_OF_TORCH[torch]) - set(HANDED_ON)


ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / ".venv-nccl" / "newest" / "nvidia" / "nccl" / "include" / "nccl.h"


@pytest.mark.skipif(not HEADER.exists(), reason="not installed: make nccl-header")
def test_the_page_names_the_functions_of_the_newest_header_that_it_lacks():
    declared = set(
        re.findall(r"^(?:ncclResult_t|const char\*)\s+nccl([A-Z]\w*)\(", HEADER.read_text(), re.MULTILINE)
    )
    assert len(declared) > 40
    lacking = declared - set(SERVED) - set(HANDED_ON)
    page = (ROOT / "docs" / "nccl.md").read_text()
    named = page.partition("Not there, and new in NCCL")[2].partition("\n\n")[0]
    assert sorted(set(re.findall(r"`(\w+)`", named))) == sorted(lacking)


def test_it_exports_what_it_promises_and_nothing_else():
    symbols = [line.split()[-1] for line in tool("nm", "-D", "--defined-only", str(STAND_IN)).splitlines()]
    assert sorted(symbols) == sorted([f"nccl{name}" for name in SERVED + HANDED_ON] + ["ringreduce_nccl"])


def test_programs_find_it_as_nccl():
    assert "[libnccl.so.2]" in tool("readelf", "-d", str(STAND_IN))


def test_the_command_line_names_it(capsys):
    assert main(["nccl-preload"]) == 0
    assert capsys.readouterr().out.strip() == str(STAND_IN)


# --- a program of C --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("nccl")
    libraries = [library().LIBRARY, STAND_IN.with_name("libringreduce.so"), STAND_IN]
    subprocess.run([sys.executable, ROOT / "bench" / "gpu" / "kit.py", folder, *libraries], check=True)
    return folder / "program"


def run_program(program, *arguments, status=0, **environment):
    """What it prints. Loads the library as users do."""
    env = {
        **os.environ,
        "LD_PRELOAD": str(program.with_name(STAND_IN.name)),
        "RINGREDUCE_CUDA_LIBRARY": str(program.with_name(library().LIBRARY.name)),
        **{"RINGREDUCE_EMULATED_BLOCKS": "16", **environment},
    }
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PROGRAM)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


SECONDS = 5 if HAS_CARD else 60  # that a call may take
# The ranks, and those of a process.
WORLDS = [(1, 1), (2, 2), (3, 3), (8, 8), (2, 1), *([] if HAS_CARD else [(3, 1), (4, 2)])]


@pytest.mark.parametrize(("world", "each"), WORLDS)
def test_a_program_written_for_nccl(program, world, each):
    *checks, last = run_program(program, world, each, SECONDS).splitlines()
    assert len(checks) == 33 and last == "all right"
    assert all(re.search(r": \d+\.\d+ s$", check) for check in checks)


@emulated_only
@pytest.mark.parametrize("each", [1, 2])
def test_a_program_names_the_call_that_is_not_over(program, each):
    said = run_program(program, 2, each, 1, status=3, RINGREDUCE_EMULATED_SLOW_MEMORY="3000")
    assert re.search(r"^2 ranks meet: line \d+: not over after 1 s: nccl\w+\(", said, re.MULTILINE)


@emulated_only
@pytest.mark.parametrize(
    ("world", "each", "hosts"), [(2, 1, "ab"), (3, 1, "aab"), (4, 1, "abab"), (4, 2, "ab")]
)
def test_a_program_on_several_hosts(program, world, each, hosts):
    """Where the real NCCL is not there."""
    said = run_program(program, world, each, SECONDS, hosts, RINGREDUCE_NCCL_LIBRARY="/nowhere")
    assert said.endswith("all right\n")


@pytest.mark.slow
@emulated_only
def test_what_several_hosts_do_not_serve():
    answers("ab", "stand_in")
    answers("aabb", "stand_in")


@emulated_only
@pytest.mark.parametrize(
    ("world", "variables", "reason"),
    [
        (33, {}, "its kernels serve at most 32 ranks, and through the CPU: rank 0: 17 ranks of one process"),
        (4, {"RINGREDUCE_EMULATED_BLOCKS": "1"}, "2 ranks share"),
        (2, {"RINGREDUCE_GPU_TRANSPORT": "nccl"}, "RINGREDUCE_GPU_TRANSPORT is nccl"),
        (2, {"RINGREDUCE_NCCL_LIBRARY": "", "RINGREDUCE_GPU_TRANSPORT": "nccl"}, "cannot be loaded"),
        (
            2,
            {"RINGREDUCE_NCCL_LIBRARY": str(STAND_IN), "RINGREDUCE_GPU_TRANSPORT": "nccl"},
            "stands in for NCCL",
        ),
    ],
)
def test_without_the_real_nccl_it_says_what_it_cannot_serve(program, world, variables, reason):
    environment = {"RINGREDUCE_NCCL_LIBRARY": "/nowhere", **variables}
    said = run_program(program, world, world, SECONDS, status=1, **environment)
    assert "invalid usage: rank " in said and f" of {world}: this library cannot serve" in said
    assert reason in said


def _blocks_of_a_call(rank):
    library().call("choose_device", rank.device)
    emulated = ctypes.CDLL(str(EMULATED_LIBRARY))
    emulated.ringreduce_emulated_largest_kernel(rank.device)
    x = rank.array(np.ones(30_000))
    rank.all_reduce(x)
    assert rank.values(x) == [rank.world] * 30_000
    return emulated.ringreduce_emulated_largest_kernel(rank.device)


@emulated_only
@pytest.mark.parametrize(
    ("config", "blocks"),
    [({}, 4), ({"minCTAs": 6}, 6), ({"maxCTAs": 1}, 1), ({"minCTAs": 3, "maxCTAs": 32}, 4)],
)
def test_configurations_bound_the_thread_blocks(config, blocks):
    both = ranks(2, **config)
    assert in_threads(*(lambda rank=rank: _blocks_of_a_call(rank) for rank in both)) == [blocks] * 2
    in_threads(*(rank.destroy for rank in both))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"minCTAs": 4, "maxCTAs": 3}, "minCTAs is 4, but maxCTAs is 3"),
        ({"minCTAs": 0}, "minCTAs must be at least 1, not 0"),
        ({"maxCTAs": -1}, "maxCTAs must be at least 1, not -1"),
    ],
)
def test_configurations_that_contradict_themselves(config, said):
    with pytest.raises(Failed, match=said) as error:
        ranks(2, **config)
    assert error.value.result == INVALID_ARGUMENT


def _gathered_by_copies(rank, flags):
    """Whether an all-gather of a window's memory, in place in it, leaves the blocks of the GPU alone."""
    library().call("choose_device", rank.device)
    emulated, window = ctypes.CDLL(str(EMULATED_LIBRARY)), ctypes.c_void_p()
    count = 30_000
    whole = rank.array(np.repeat(np.arange(rank.world) == rank.rank, count) * (rank.rank + 1.0))
    memory, size = ctypes.c_void_p(whole.address), ctypes.c_size_t(4 * count * rank.world)
    check(nccl().ncclCommWindowRegister(rank.comm, memory, size, ctypes.byref(window), flags))
    assert window.value == (whole.address if flags else None)
    own = ctypes.c_void_p(whole.address + 4 * count * rank.rank)
    emulated.ringreduce_emulated_largest_kernel(rank.device)
    check(nccl().ncclAllGather(own, memory, ctypes.c_size_t(count), FLOAT32, rank.comm, rank.stream.handle))
    assert rank.values(whole) == np.repeat(np.arange(rank.world) + 1.0, count).tolist()
    blocks = emulated.ringreduce_emulated_largest_kernel(rank.device)
    check(nccl().ncclCommWindowDeregister(rank.comm, window))
    return blocks == 0


@emulated_only
@pytest.mark.parametrize(
    ("config", "flags", "copies"),
    [({"CTAPolicy": 2}, 1, True), ({"CTAPolicy": 2}, 0, False), ({"CTAPolicy": 1}, 1, False), ({}, 1, False)],
)
def test_windows_and_the_policy_of_no_blocks(config, flags, copies):
    both = ranks(2, **config)
    assert in_threads(*(lambda rank=rank: _gathered_by_copies(rank, flags) for rank in both)) == [copies] * 2
    in_threads(*(rank.destroy for rank in both))


# --- over the real NCCL ----------------------------------------------------------------------------------------


@pytest.mark.skipif(HAS_CARD or not EMULATED_NCCL.exists(), reason="needs the emulated NCCL")
def test_what_kernels_do_not_serve_goes_to_nccl(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_GPU_TRANSPORT", "nccl")
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", str(EMULATED_NCCL))
    real = ctypes.CDLL(str(EMULATED_NCCL))
    before = real.ringreduce_emulated_nccl_alive()
    both = ranks(2)
    assert real.ringreduce_emulated_nccl_alive() == before + 2

    def main(rank):
        library().call("choose_device", rank.device)
        x, y = rank.array([rank.rank + 1, 2, 3]), rank.array([0, 0, 0])
        for _ in range(4):
            rank.all_reduce(x)
        nccl_api.check(nccl().ncclGroupStart())
        rank.message("ncclRecv", y, 1 - rank.rank)
        rank.message("ncclSend", x, 1 - rank.rank)
        nccl_api.check(nccl().ncclGroupEnd())
        assert rank.async_error() == 0
        found = rank.values(x), rank.values(y)
        rank.destroy()
        return found

    assert in_threads(*(lambda rank=rank: main(rank) for rank in both)) == [([24, 32, 48], [24, 32, 48])] * 2
    assert real.ringreduce_emulated_nccl_alive() == before


# --- bad input -------------------------------------------------------------------------------------------------


def refused(result, text, function, *args):
    with pytest.raises(Failed) as caught:
        function(*args)
    assert text in str(caught.value)
    assert caught.value.result == result


@pytest.fixture
def pair():
    made = ranks(2)
    yield made
    for rank in made:
        nccl().ncclCommAbort(rank.comm)


def on(rank, function, *args):
    """In a thread of its own, on the rank's device."""
    library().call("choose_device", rank.device)
    return function(rank, *args)


@pytest.mark.parametrize("what", ["dtype", "op"])
def test_ranks_that_call_different_things(pair, what):
    def call(rank):
        other = {"dtype": {"dtype": INT32}, "op": {"op": PROD}}[what] if rank.rank == 1 else {}
        rank.all_reduce(rank.array([1] * 100_000), **other)
        return rank.wait_for_error()

    assert in_threads(*(lambda rank=rank: on(rank, call) for rank in pair)) == [INVALID_USAGE] * 2
    for rank in pair:
        library().call("choose_device", rank.device)
        refused(INVALID_USAGE, "rank 1", rank.all_reduce, rank.array())


def test_memory_of_another_gpu(pair):
    if pair[0].device == pair[1].device:
        pytest.skip("there is one GPU only")
    library().call("choose_device", 1 - pair[1].device)
    elsewhere = pair[1].array()
    text = f"rank 1 of 2: the send buffer is on GPU {1 - pair[1].device}"
    refused(INVALID_ARGUMENT, text, pair[1].all_reduce, elsewhere)
    one = ctypes.c_size_t(1)
    call = [None, None, one, 7, 0, pair[0].comm, pair[0].stream.handle]
    assert nccl().ncclAllReduce(*call) == INVALID_ARGUMENT
    assert nccl_api.last_error() == "rank 0 of 2: the send buffer is null"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"dtype": 77}, "rank 0 of 2: unknown datatype 77"),
        ({"op": 77}, "rank 0 of 2: unknown operator 77"),
    ],
)
def test_numbers_that_mean_nothing(pair, how, text):
    library().call("choose_device", pair[0].device)
    refused(INVALID_ARGUMENT, text, lambda: pair[0].all_reduce(pair[0].array(), **how))


def test_a_peer_that_is_not_there(pair):
    library().call("choose_device", pair[0].device)
    text = "rank 0 of 2: the peer is 2, but there are 2 ranks"
    refused(INVALID_ARGUMENT, text, pair[0].message, "ncclSend", pair[0].array(), 2)


def test_a_call_that_is_refused_spoils_its_group_only(pair):
    library().call("choose_device", pair[0].device)
    x = pair[0].array()
    nccl_api.check(nccl().ncclGroupStart())
    pair[0].all_reduce(x)
    refused(INVALID_ARGUMENT, "the peer is 2", pair[0].message, "ncclSend", x, 2)
    assert nccl().ncclGroupEnd() == INVALID_ARGUMENT  # nothing of it has run
    assert nccl().ncclGroupEnd() == INVALID_USAGE  # none has begun

    def call(rank):
        mine = rank.array()
        rank.all_reduce(mine)
        return rank.values(mine)

    assert in_threads(*(lambda rank=rank: on(rank, call) for rank in pair)) == [[2, 4, 6]] * 2


def test_a_group_that_is_only_simulated_runs_nothing(pair):
    library().call("choose_device", pair[0].device)
    x = pair[0].array()
    nccl_api.check(nccl().ncclGroupStart())
    pair[0].all_reduce(x)
    assert nccl().ncclGroupSimulateEnd(None) == INVALID_USAGE
    assert "no estimate" in nccl_api.last_error()
    assert nccl().ncclGroupEnd() == INVALID_USAGE  # it has ended
    assert pair[0].values(x) == [1, 2, 3]


def test_communicators_that_are_none(pair):
    library().call("choose_device", pair[0].device)
    x = pair[0].array()
    comm = pair[0].comm
    pair[0].comm = None
    refused(INVALID_ARGUMENT, "the communicator is null", pair[0].all_reduce, x)
    foreign = (ctypes.c_uint64 * 64)()
    pair[0].comm = ctypes.c_void_p(ctypes.addressof(foreign))
    refused(INVALID_ARGUMENT, "was not created by this library", pair[0].all_reduce, x)
    pair[0].comm = comm
    pair[0].destroy()
    refused(INVALID_ARGUMENT, "rank 0 of 2: the communicator was destroyed", pair[0].all_reduce, x)
    refused(INVALID_ARGUMENT, "rank 0 of 2: the communicator was destroyed", pair[0].destroy)


def test_abort_ends_what_waits_for_other_ranks(pair):
    library().call("choose_device", pair[0].device)
    x, came = pair[0].array(), pair[0].array()
    pair[0].all_reduce(x)
    pair[0].stream = new_stream()
    pair[0].message("ncclRecv", came, 1)
    pair[0].abort()
    library().synchronize(pair[0].stream)
    refused(INVALID_ARGUMENT, "rank 0 of 2: the communicator was destroyed or aborted", pair[0].all_reduce, x)
    assert pair[1].wait_for_error() == REMOTE_ERROR
    library().call("choose_device", pair[1].device)
    refused(REMOTE_ERROR, "rank 0", pair[1].all_reduce, pair[1].array())


def test_messages_do_not_block_the_host(pair):
    """One thread calls for both ranks, also within a graph, and receives first."""
    sent, came = [], []
    for rank in pair:
        library().call("choose_device", rank.device)
        sent.append(rank.array(np.arange(50_000) + rank.rank))
        came.append(rank.array(np.zeros(50_000)))
    with contextlib.ExitStack() as stack:
        graphs = [stack.enter_context(library().captured(rank.stream)) for rank in pair]
        for rank in pair:
            nccl_api.check(nccl_api.nccl().ncclGroupStart())
            rank.message("ncclRecv", came[rank.rank], 1 - rank.rank)
            rank.message("ncclSend", sent[rank.rank], 1 - rank.rank)
            nccl_api.check(nccl_api.nccl().ncclGroupEnd())
    for rank, graph in zip(pair, graphs, strict=True):
        graph.launch(rank.stream)
    for rank in pair:
        assert rank.values(came[rank.rank])[:2] == [1 - rank.rank, 2 - rank.rank]
        library().move(came[rank.rank].address, sent[rank.rank].address, 200_000, rank.stream)
    for rank in pair:
        rank.message("ncclRecv", came[rank.rank], 1 - rank.rank)
    for rank in pair:
        library().call("choose_device", rank.device)
        rank.stream, before = new_stream(), rank.stream
        rank.message("ncclSend", sent[rank.rank], 1 - rank.rank)
        rank.stream = before
    for rank, graph in zip(pair, graphs, strict=True):
        assert rank.values(came[rank.rank])[-1] == 49_999 + 1 - rank.rank
        graph.close()


# --- meeting ---------------------------------------------------------------------------------------------------


def test_ranks_that_differ_about_their_number():
    id = unique_id()
    for failed in in_threads(lambda: Rank(2, 0, id), lambda: Rank(3, 1, id)):
        assert failed.result == INVALID_USAGE
        assert "asks for a communicator of" in str(failed)


def test_one_rank_twice():
    id = unique_id()
    for failed in in_threads(lambda: Rank(2, 1, id), lambda: Rank(2, 1, id)):
        assert failed.result == INVALID_USAGE
        assert "two callers claim to be rank 1 of 2" in str(failed)


def test_a_rank_that_is_none():
    refused(INVALID_ARGUMENT, "the rank is 2, but there are 2 ranks", Rank, 2, 2, unique_id())


def test_an_id_of_another_library():
    refused(
        INVALID_ARGUMENT,
        "rank 0 of 1: the unique id was not made by this library",
        Rank,
        1,
        0,
        nccl_api.UniqueId(),
    )


def test_an_id_of_another_version():
    id = unique_id()
    id.internal[8:12] = b"9.9.9"[:4]
    refused(
        INVALID_ARGUMENT, "rank 0 of 1: the rank that made the unique id runs another build", Rank, 1, 0, id
    )


def test_an_id_without_its_secret():
    id = unique_id()
    id.internal[40:56] = bytes(16)
    refused(REMOTE_ERROR, "another program listens", Rank, 1, 0, id)


def test_strangers_do_not_keep_ranks_from_meeting():
    id = unique_id()
    raw = bytes(id.internal)
    port = struct.unpack_from("=H", raw, 58)[0]
    address = socket.inet_ntop(
        socket.AF_INET if raw[56] == 4 else socket.AF_INET6, raw[64 : 68 if raw[56] == 4 else 80]
    )
    strangers = [socket.create_connection((address, port)) for _ in range(100)]
    for index, stranger in enumerate(strangers):
        stranger.sendall(bytes([index]) * index)
    met = in_threads(lambda: Rank(2, 0, id), lambda: Rank(2, 1, id))

    def summed(rank):
        x = rank.array()
        rank.all_reduce(x)
        return rank.values(x)

    assert in_threads(*(lambda rank=rank: on(rank, summed) for rank in met)) == [[2, 4, 6]] * 2
    for rank in met:
        rank.abort()
    for stranger in strangers:
        stranger.close()
