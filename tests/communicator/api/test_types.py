"""What a type checker knows of the package."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import ringreduce
from ringreduce import Communicator, _engine
from ringreduce.annotations import Algorithm, Array, Op, OpName, Transport, Wire
from ringreduce.communicator import world

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("typed_program.py")


def expected():
    """By line of the program, what its comment says."""
    lines = enumerate(PROGRAM.read_text().splitlines(), start=1)
    return {number: line.rpartition("  # ")[2] for number, line in lines if "  # " in line}


def short(name):
    """A type without modules, and without what NumPy's arrays are made of."""
    name = re.sub(r"[\w.]+\.(?=\w)", "", name)
    name = re.sub(r"dtype\[\w+(\[\w+\])?\]", "dtype", name)
    return re.sub(r"ndarray\[(tuple\[Any, \.\.\.\]|Any), dtype\]", "ndarray", name)


def test_mypy_knows_what_calls_return_and_what_is_wrong():
    pytest.importorskip("mypy")
    pytest.importorskip("torch")
    # With the project's own settings, for which mypy has seen torch before.
    command = [sys.executable, "-m", "mypy", "--hide-error-context", str(PROGRAM)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = {}
    for line in run.stdout.splitlines():
        if match := re.match(r'\S+typed_program\.py:(\d+): note: Revealed type is "(.*)"$', line):
            found[int(match[1])] = short(match[2])
        elif match := re.match(r"(\S+):(\d+): error: .* \[([\w-]+)\]$", line):
            assert match[1].endswith("typed_program.py"), line
            found[int(match[2])] = f"error: {match[3]}"
    assert found == expected(), run.stdout + run.stderr


def test_literals_name_all_that_there_is():
    assert set(get_args(OpName)) == {*_engine.reduce.ops()}
    assert set(get_args(Wire)) == {*_engine.reduce.wires()} - {"none"}
    with pytest.raises(ValueError) as caught:
        ringreduce.init(transport="udp")
    named = str(caught.value).removesuffix(", not 'udp'").removeprefix("transport must be ")
    assert tuple(re.split(", | or ", named)) == get_args(Transport)
    with pytest.raises(ValueError) as of_engine:
        _engine.connect(0, 1, lambda blob: [blob], 1.0, None, "udp", None, None, None, None)
    assert str(of_engine.value) == str(caught.value)


def test_annotations_can_be_read_while_a_program_runs():
    hints = get_type_hints(Communicator.all_reduce)
    assert hints["x"] == Array and hints["op"] == Op and hints["algorithm"] == Algorithm


OF_THE_MODULE = [
    name for name in ringreduce._HOMES["communicator.world"].split() if hasattr(Communicator, name)
]


@pytest.mark.parametrize("name", OF_THE_MODULE)
def test_functions_of_the_module_take_what_methods_take(name):
    function, method = getattr(world, name), getattr(Communicator, name)
    assert function.__doc__ == method.__doc__
    parameters = list(inspect.signature(method).parameters.values())
    assert list(inspect.signature(function).parameters.values()) == parameters[1:]


def test_every_collective_is_a_function_of_the_module():
    assert {"all_reduce", "recv", "explain", "scatter_object"} <= set(OF_THE_MODULE)
    collectives = {entry.collective for entry in ringreduce.algorithms()}
    assert collectives <= set(OF_THE_MODULE)
