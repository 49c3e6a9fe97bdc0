"""Compares tensor-parallel decoding over ringreduce with the same over Gloo, with transformers.

    make .venv-frameworks/.ready
    .venv-frameworks/bin/python -m bench.frameworks.decoding
    .venv-frameworks/bin/python -m bench.frameworks.decoding --ranks 4 --launches 5

A Llama model of 109 M parameters with random weights (examples/llama_inference.py) is divided among the ranks. Each
launch starts the example under torchrun, once for each backend, in turn. It times one long generation of single tokens
after a short one.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np

from bench.turns import span, under_torchrun
from ringreduce import _engine
from ringreduce.bench.results import mode_of
from ringreduce.text import markdown

ROOT = Path(__file__).resolve().parents[2]

GLOO, OURS = BACKENDS = ("gloo", "ringreduce")


def decode(backend: str, options: Namespace) -> dict:
    """Returns what the example prints: its tokens, and the seconds for each of them."""
    example = [str(ROOT / "examples" / "llama_inference.py"), "--backend", backend]
    words = [*example, "--tokens", str(options.tokens)]
    return under_torchrun(options.ranks, words, {"PYTHONPATH": str(ROOT)})


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    launches, modes = [], []
    for number in range(options.launches):
        before = _engine.probe_exchange()
        order = BACKENDS if number % 2 == 0 else BACKENDS[::-1]
        found = {backend: decode(backend, options) for backend in order}
        if found[OURS]["tokens"] != found[GLOO]["tokens"]:
            raise SystemExit("the two backends generate different tokens")
        launches.append({backend: found[backend]["seconds"] for backend in BACKENDS})
        modes.append(mode_of(before, _engine.probe_exchange()))
    rows = [["", "ms per token", "tokens/s", "of Gloo's", "in the launches"]]
    for name in BACKENDS:
        seconds = float(np.median([one[name] for one in launches]))
        ratios = [one[GLOO] / one[name] for one in launches]
        speed = [f"{1e3 * seconds:.1f}", f"{1 / seconds:.1f}", f"{np.median(ratios):.2f} x"]
        rows.append([name, *speed, span(ratios)])
    print(f"{options.ranks} ranks, core-to-core exchange {', '.join(modes)}\n\n{markdown(rows)}")


if __name__ == "__main__":
    main()
