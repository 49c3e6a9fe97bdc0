"""A Llama model of transformers, divided among ranks, generates the tokens of one process."""

from __future__ import annotations

import importlib.util

import pytest

from tests.frameworks.installed.programs import run

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_tokens_are_those_of_one_process(ranks):
    alone = run("llama_inference.py", "--small", "--backend", "gloo")
    found = run("llama_inference.py", "--small", ranks=ranks)
    assert (found["backend"], found["world"]) == ("ringreduce", ranks)
    assert len(set(alone["tokens"])) > 3
    assert found["parameters"] < 0.8 * alone["parameters"]  # a rank holds a part of the layers
    assert found["tokens"] == alone["tokens"]
