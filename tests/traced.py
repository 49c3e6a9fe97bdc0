"""What the tests of JAX and of TensorFlow share. ``front`` is ringreduce.jax or ringreduce.tensorflow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import weakref
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import ringreduce
from tests.processes import ROOT, free_port, held, on_ranks_of_a_command

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"]
COMPLEX = ["complex64", "complex128"]
COMBINE = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
BITWISE = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
PATIENCE = 250  # seconds; importing a framework and compiling take several, on cores that are free

# --- results against NumPy's, with inputs that every order of combining adds exactly -----------------------------


def values(rank, shape, dtype="float32"):
    """Small integers, also exact in 8-bit floats."""
    counted = np.arange(np.prod(shape, dtype=int)) + rank
    return (counted % 3).reshape(shape).astype(getattr(ml_dtypes, dtype, dtype))


def combined(inputs, op):
    found = inputs[0]
    for value in inputs[1:]:
        found = (COMBINE | BITWISE)[op](found, value)
    return found.astype(inputs[0].dtype)


def ops_of(dtype):
    if dtype in COMPLEX:
        return ["sum", "prod"]
    return [*COMBINE, *(BITWISE if dtype in [*INTEGERS, "bool"] else ())]


def differences(found, wanted, what):
    """A line for each array that differs in shape, dtype or any value."""
    found = np.asarray(found)
    same = found.shape == wanted.shape and found.dtype == wanted.dtype and np.array_equal(found, wanted)
    return [] if same else [f"{what}: {found.dtype}{found.shape} {found} instead of {wanted}"]


def wrong_results(comm, front, compiled):
    """Of all collectives in all dtypes. ``compiled``: the framework's function that makes a program of a call."""
    wrong = []
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, "bool"]:
        inputs = [values(rank, (2 * comm.size, 3), dtype) for rank in range(comm.size)]
        mine = slice(2 * comm.rank, 2 * comm.rank + 2)
        calls = {
            front.all_gather: np.concatenate(inputs),
            front.all_to_all: np.concatenate([each[mine] for each in inputs]),
            partial(front.broadcast, root=comm.size - 1): inputs[-1],
        }
        for op in ops_of(dtype):
            calls[partial(front.all_reduce, op=op)] = combined(inputs, op)
            calls[partial(front.reduce_scatter, op=op)] = combined(inputs, op)[mine]
        for call, wanted in calls.items():
            found = compiled(partial(call, comm=comm))(inputs[comm.rank])
            wrong += differences(found, wanted, f"{call} {dtype}")
    return wrong


def averages(comm, front):
    x = np.array([3 * comm.rank, -3 * comm.rank, 8], "int32")
    return [np.asarray(front.all_reduce(one, "avg", comm=comm)).tolist() for one in (x, x * np.float32(0.5))]


AVERAGES = [[[1, -1, 8], [0.75, -0.75, 4.0]]] * 2

# --- mistakes ------------------------------------------------------------------------------------------------------

KINDS = ["op", "shape", "dtype", "root", "call", "message"]


def disagreeing(comm, front, cast):
    """Programs, by what the ranks' calls differ in. ``cast``: the framework's function that changes a dtype."""
    return {
        "op": lambda x: front.all_reduce(x, ("sum", "max")[comm.rank], comm=comm),
        "shape": lambda x: front.all_reduce(x[: 3 + comm.rank], comm=comm),
        "dtype": lambda x: front.all_reduce(cast(x, ("float32", "int32")[comm.rank]), comm=comm),
        "root": lambda x: front.all_reduce(front.broadcast(x, comm.rank, comm=comm), comm=comm),
        "call": lambda x: (front.all_gather, front.all_to_all)[comm.rank](x, comm=comm),
        "message": lambda x: front.sendrecv(x, x[:2], dest=1 - comm.rank, source=1 - comm.rank, comm=comm),
    }


def both_ranks_are_named(texts):
    for text in texts:
        assert "ringreduce: " in text and "rank 0" in text and "rank 1" in text


def report(found):
    """Prints what a survivor has seen: the rank that dies cannot return anything, so its parent only learns of that."""
    os.write(1, f"{found!r}\n".encode())  # in one piece: both survivors write


def said_of_a_killed_rank(capfd, function, *arguments):
    """What the two survivors of three ranks report."""
    with pytest.raises(ringreduce.RankFailed) as raised:
        ringreduce.run(function, 3, *arguments)
    assert raised.value.rank == 1
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("(")]
    assert len(lines) == 2
    for line in lines:
        assert line.count("rank 1 died") >= 2
        assert line.endswith("[2.0, 2.0, 2.0, 2.0])")
    return lines


def mistaken(comm, front, x):
    """Calls with mistakes in them. ``x``: three floats."""
    return [
        lambda: front.all_reduce(x, "mean", comm=comm),
        lambda: front.all_reduce(x, "band", comm=comm),
        lambda: front.all_reduce(x > 0, "avg", comm=comm),
        lambda: front.all_reduce(x, comm=3),
        lambda: front.all_reduce(x),
        lambda: front.reduce_scatter(x, comm=comm),
        lambda: front.all_to_all(x, comm=comm),
        lambda: front.all_gather(1.0, comm=comm),
        lambda: front.broadcast(x, 2, comm=comm),
        lambda: front.send(x, -1, comm=comm),
        lambda: front.recv(x, None, comm=comm),
        lambda: front.recv(x, 0, tag=1 << 40, comm=comm),
    ]


MISTAKES = [
    ("ValueError", "op must be one of"), ("ValueError", "op 'band' is not defined for float32"),
    ("ValueError", "op 'avg' is not defined for bool"), ("TypeError", "comm must be"),
    ("Error", "call ringreduce.init() first"), ("ValueError", "3 rows"), ("ValueError", "3 rows"),
    ("ValueError", "at least one axis"), ("ValueError", "root must be a rank from 0 to 1"),
    ("ValueError", "dest must be a rank"), ("TypeError", "source must be a rank"), ("ValueError", "tag must be"),
]  # fmt: skip


def errors_of(calls):
    found = []
    for call in calls:
        try:
            call()
        except (TypeError, ValueError, ringreduce.Error) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def errors_are(found, wanted):
    assert len(found) == len(wanted), found
    for line, (kind, part) in zip(found, wanted, strict=True):
        assert line.startswith(kind) and part in line


# --- programs that are started as users start them -----------------------------------------------------------------


def losses(ranks, *words, **variables):
    """What an example prints of its losses."""
    done = on_ranks_of_a_command("-n", ranks, sys.executable, *words, timeout=PATIENCE, **variables)
    assert done.returncode == 0, done.stderr
    return [float(number) for number in re.findall(r"loss (\S+)", done.stdout)]


def documented(tmp_path, word, before="", **variables):
    """What the only program of the page with this word prints on two ranks."""
    text = (ROOT / "docs/frameworks.md").read_text()
    programs = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (program,) = (one for one in programs if word in one)
    (tmp_path / "train.py").write_text(before + program)
    words = "-n", 2, sys.executable, tmp_path / "train.py"
    done = on_ranks_of_a_command(*words, timeout=PATIENCE, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def weights_of_the_documentation(printed):
    weights = [float(number) for number in re.findall(r"\d\.\d+", printed)]
    assert weights[0] < weights[1] < weights[2] < weights[3]  # on their way to 0, 1, 2 and 3


def said_by_both(program, rank_0="", **variables):
    """What two ranks print, and what rank 1 writes to stderr. They have no launcher, which would end the other one.

    Args:
        rank_0: what rank 0 reads once rank 1 has ended.
    """
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=os.environ | variables | place | {"RANK": str(rank)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said, complaints = processes[1].communicate(timeout=PATIENCE)
        return processes[0].communicate(rank_0, timeout=PATIENCE)[0], said, complaints
    finally:
        for process in processes:
            process.kill()


def rank_1_was_interrupted(other, interrupted, complaints):
    assert "rank 1: KeyboardInterrupt" in interrupted
    assert "Exception ignored" not in complaints
    assert re.search(r"rank 0: \w+Error .*rank 1", other)


# --- what programs keep of the communicators that they call, and what becomes of their calls ----------------------


def come_and_go(comm, use, cycles):
    """Makes, uses and drops communicators. Returns what the process holds before and after, and how many live on."""
    made = []
    for number in range(5 + cycles):
        if number == 5:  # threads and caches have come
            before = held()
            comm.barrier()
        group = comm.split(0)
        made.append(weakref.ref(group))
        use(group)
        comm.barrier()  # no rank drops it while another one uses it
        if number % 2:
            group.close()
        del group
    after = held()
    return before[:3], after[:3], sum(one() is not None for one in made)


def no_program_keeps_a_communicator(found):
    for (threads, mapped, files), after, live in found:
        assert live == 0
        assert after == (threads, mapped, files)


def calls_after_the_end(comm, compiled, error_of):
    """The errors of programs whose communicators have been closed, and freed."""
    texts = []
    for end in ("close", "free"):
        group = comm.split(0)
        program = compiled(group)
        program()
        comm.barrier()
        if end == "close":
            group.close()
        else:
            del group
        texts.append(error_of(program))
        comm.barrier()
    return texts


def errors_say_what_became_of_it(found):
    for closed, freed in found:
        assert "the communicator is closed" in closed
        assert "has been freed: keep a communicator for as long as programs call it" in freed
