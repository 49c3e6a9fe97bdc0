"""The command ``ringreduce plan``."""

from __future__ import annotations

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path

from ringreduce.studies.plan.cluster import Cluster, read_cluster
from ringreduce.studies.plan.failures import Goodput, goodput
from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.prediction import Prediction, Simulations, predict, sensitivity
from ringreduce.studies.plan.scaling import best
from ringreduce.studies.plan.search import Search, search
from ringreduce.studies.plan.strategies import EXACT, STRATEGIES, Strategy, strategy
from ringreduce.studies.plan.trace import trace
from ringreduce.studies.plan.transformer import read_job
from ringreduce.text import human_seconds, layout

__all__ = ["as_json", "run", "table"]

HEADING = ["strategy", "ranks", "step", "exposed", "efficiency", "memory, GB", "link, GB", "bound by"]


def run(options: Namespace) -> int:
    if options.what[:1] == ["record"]:
        return _record(options)
    if len(options.what) != 2:
        raise ValueError(
            f"plan needs a job and a cluster, or: record PROGRAM, not {' '.join(options.what)!r}"
        )
    job, cluster = read_job(Path(options.what[0])), read_cluster(Path(options.what[1]))
    sets = {"exact": EXACT, "all": STRATEGIES}
    asked = [text for word in options.strategy for text in sets.get(word, [word])]
    chosen = {text: _strategy(text) for text in asked}
    worlds = [_world(text) for text in options.world] or [cluster.world]
    simulations = Simulations(cluster)
    tried = _search(options, job, cluster, asked, max(worlds), simulations) if options.search else None
    if tried:
        chosen = {text: one.strategy for text, one in tried.best}
    found = [
        (text, predict(job, cluster, each, world, simulations))
        for world in worlds
        for text, each in chosen.items()
    ]
    if not any(one.fits for _, one in found):
        least = min(found, key=lambda one: one[1].memory.total)
        raise ValueError(
            f"{options.what[1]}: device.memory: no strategy fits; {least[0]} needs least, "
            f"{least[1].memory.total / 1e9:.3g} GB on {least[1].world} ranks"
        )
    print(as_json(found) if options.format == "json" else table(found, job, cluster))
    if options.format == "table":
        print(*_advice(found, job, cluster), *([tried.summary()] if tried else []), sep="\n")
    if options.html:
        # Needs jinja2 and plotly, which tables do not.
        report = importlib.import_module("ringreduce.studies.plan.report")
        report.write(options.html, job, cluster, chosen, worlds, simulations, tried)
    if options.trace:
        _trace(options.trace, found)
    for path in filter(None, (options.html, options.trace)):
        print(f"Written: {path}", file=sys.stderr)
    return 0


def _strategy(text: str) -> Strategy:
    try:
        return strategy(text)
    except ValueError as error:
        raise ValueError(f"--strategy: {error}") from error


def _search(
    options: Namespace, job: Job, cluster: Cluster, asked: list[str], world: int, simulations: Simulations
) -> Search:
    try:
        return search(job, cluster, asked, world, simulations)
    except ValueError as error:
        raise ValueError(f"{options.what[1]}: {error}") from error


def _trace(path: Path, found: list[tuple[str, Prediction]]) -> None:
    fastest = best(found)
    assert fastest is not None  # at least one fits
    try:
        trace(*fastest, path)
    except OSError as error:
        raise ValueError(f"--trace {path}: {error.strerror}") from error


def _record(options: Namespace) -> int:
    if len(options.what) < 2 or options.samples is None:
        raise ValueError("plan record needs a program, and --samples: how many a step of it processes")
    if options.samples < 1:
        raise ValueError(f"--samples must be at least 1, not {options.samples}")
    program = Path(options.what[1])
    path = options.output or program.with_suffix(".json")
    # Needs torch, which plans of described jobs do not.
    recording = importlib.import_module("ringreduce.studies.plan.record")
    recording.record_program(path, program, options.what[2:], options.samples, options.unit)
    print(f"Job: {path}")
    return 0


def _world(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise ValueError(f"-n: {text!r} is not a number of ranks")
    return int(text)


def table(found: list[tuple[str, Prediction]], job: Job, cluster: Cluster) -> str:
    """Returns a table with a line for each strategy and world, the fastest of each world first."""
    priced = cluster.device.price_per_hour > 0
    heading = [*HEADING[:3], f"{job.unit}/s", *HEADING[3:], *(["per million"] if priced else [])]
    rows = [heading]
    for text, one in sorted(found, key=lambda pair: (pair[1].world, not pair[1].fits, pair[1].seconds)):
        memory = f"{one.memory.total / 1e9:.3g}" + ("" if one.fits else " (too much)")
        figures = [
            human_seconds(one.seconds), _short(one.rate), human_seconds(one.exposed), f"{100 * one.efficiency:.1f} %",
            memory, f"{one.link_bytes / 1e9:.3g}", one.bound,
        ]  # fmt: skip
        rows.append([text, str(one.world), *figures, *([f"{one.price:.3g}"] if priced else [])])
    title = (
        f"{job.name}: {job.elements:,} parameters, {job.samples:,} {job.unit} in each rank's pass, predicted"
    )
    return "\n".join([title, *layout(rows)])


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _advice(found: list[tuple[str, Prediction]], job: Job, cluster: Cluster) -> list[str]:
    """Returns the memory of the fastest strategy by part, and what would change its speed."""
    fastest = best(found)
    if fastest is None:
        return []
    text, one = fastest
    held, world = one.memory, one.world
    parts = {"parameters": held.parameters, "gradients": held.gradients, "optimizer": held.optimizer,
             "activations": held.activations, "buffers": held.buffers}  # fmt: skip
    failing = cluster.failures and goodput(-(-world // cluster.ranks_per_host), cluster.failures)
    changes = sensitivity(job, cluster, one.strategy, world)
    return [
        "",
        f"{text} on {world} ranks, GB of each: "
        + ", ".join(f"{name} {n / 1e9:.3g}" for name, n in parts.items()),
        "; ".join(f"{name}: {100 * gain:+.1f} %" for name, gain in changes.items()),
        *([_of_a_week(failing, one.rate, job.unit)] if failing else []),
    ]


def _of_a_week(found: Goodput, rate: float, unit: str) -> str:
    lost = {"checkpoints": found.checkpoints, "steps made again": found.again, "standing still": found.standing,
            "missing hosts": found.missing}  # fmt: skip
    parts = ", ".join(f"{100 * share:.1f} % {name}" for name, share in lost.items() if share >= 0.0005)
    kept = f"{100 * found.useful:.1f} % useful, {_short(rate * found.useful)} {unit}/s"
    return f"a week with {found.failures} failures: {kept}" + (f"; {parts}" if parts else "")


def as_json(found: list[tuple[str, Prediction]]) -> str:
    """Returns the predictions as JSON. Times are in seconds, sizes in bytes."""
    rows = [
        {
            "strategy": text, "world": one.world, "seconds": one.seconds, "rate": one.rate, "exposed": one.exposed,
            "efficiency": one.efficiency, "memory": vars(one.memory), "fits": one.fits, "link_bytes": one.link_bytes,
            "price": one.price, "causes": one.causes,
        }
        for text, one in found
    ]  # fmt: skip
    return json.dumps(rows, indent=1)
