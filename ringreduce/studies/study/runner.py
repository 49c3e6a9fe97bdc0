"""Runs a study, launch after launch, until the intervals are narrow enough or the budget is spent."""

from __future__ import annotations

import fcntl
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import ringreduce
from ringreduce import _engine
from ringreduce.annotations import Transport
from ringreduce.studies.bench.facts import machine_facts, mode_of
from ringreduce.studies.study.folder import CELL, Study, as_rows, load, save
from ringreduce.studies.study.inference import summaries
from ringreduce.studies.study.launch import Found, drawn, measure_all
from ringreduce.studies.study.plan import Cell, Competitor, Plan, different, restored
from ringreduce.studies.study.predictions import Predictor

__all__ = ["CellGroup", "Runner", "launch_here", "locked", "opened", "status"]

SAME = ("launcher", "cpu", "cores", "host")  # facts that must be the same in all launches of a study
FIGURE_S = 0.005, 0.2


class CellGroup(NamedTuple):
    """The cells of one world and transport. A launch measures cells of one group."""

    world: int
    transport: Transport

    def __str__(self) -> str:
        return f"{self.world} ranks, {self.transport}"


Measurer = Callable[[CellGroup, list[Any], float], Found]


def launch_here(group: CellGroup, blocks: list[Any], seconds: float) -> Found:
    """Starts ranks on this host, and measures the blocks."""
    if "mpi" in group.transport.split("+"):
        raise ValueError(
            f"transports: {group.transport} needs ranks that mpirun has started: "
            f"mpirun -n {group.world} ringreduce study ..."
        )
    found: Found = ringreduce.run(measure_all, group.world, blocks, seconds, True, transport=group.transport)[
        0
    ]
    return found


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder, so that only one study at a time writes to it."""
    folder.mkdir(parents=True, exist_ok=True)
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ValueError(f"{folder}: another process is running a study there") from error
    finally:
        os.close(place)


def opened(folder: Path, plan: Plan | None, launcher: str = "own") -> tuple[Study, Plan]:
    """Loads the study in a folder to continue it, or creates a new one from the plan (or the default plan).

    Raises:
        ValueError: The folder has a study with another plan, machine or version. The message is one line that names
            the folder.
    """
    facts = {**machine_facts(max((plan or Plan()).worlds)), "launcher": launcher}
    if not (folder / "study.json").exists():
        plan = plan or Plan()
        if plan.seed is None:
            plan = plan.model_copy(update={"seed": secrets.randbits(32)})
        kept = plan.model_dump(mode="json")
        facts["files"] = plan.files()
        return Study(kept, facts, as_rows([]), folder, ringreduce.__version__), plan
    study = load(folder)
    known = restored(study.plan, folder / "study.json")
    if study.version != ringreduce.__version__:
        raise ValueError(
            f"{folder}: the study was started with ringreduce {study.version}, and this is {ringreduce.__version__}; "
            "use another folder"
        )
    for path, digest in known.files().items():
        if study.facts.get("files", {}).get(path) != digest:
            raise ValueError(f"{folder}: {path} has changed since the study was started; use another folder")
    for key in SAME:
        if key == "host" and launcher != "own":  # a launcher may start the ranks on other hosts each time
            continue
        if study.facts.get(key) != facts.get(key):
            raise ValueError(
                f"{folder}: the study was started where {key} is {study.facts.get(key)}; here it is "
                f"{facts.get(key)}; use another folder"
            )
    if plan is None:
        return study, known
    changed = different(known, plan)
    if changed:
        raise ValueError(f"{folder}: its study has another plan ({', '.join(changed)}); use another folder")
    plan = plan.model_copy(update={"seed": known.seed})
    study.plan = plan.model_dump(mode="json")
    return study, plan


def status(found: Study) -> int:
    """Returns the exit status: 1 if a result was wrong or nothing could be measured."""
    wrong = any("wrong elements" in one["reason"] for one in found.refused)
    return int(wrong or found.rows.empty)


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(**{name: row[name] for name in Cell._fields})


class Runner:
    """Decides what to launch next, and saves the results."""

    def __init__(self, study: Study, plan: Plan, measurer: Measurer = launch_here) -> None:
        self.study, self.plan, self._measurer = study, plan, measurer
        self._seconds = self._took()
        self._predictor = Predictor(plan.model, plan.worlds) if plan.model is not None else None
        self._competing = {group: self._entries(group) for group in self.groups()}
        self._figure_s = plan.figure_s or self._share()

    def groups(self) -> list[CellGroup]:
        return [
            CellGroup(world, transport) for world in self.plan.worlds for transport in self.plan.transports
        ]

    def _entries(self, group: CellGroup) -> dict[Cell, list[Competitor]]:
        """Returns the entries that compete in each cell of a group, without those that were refused there."""
        refused = {
            (_cell(one), one["algorithm"])
            for one in self.study.refused
            if one["transport"] == group.transport
        }
        competing = {
            cell: [entry for entry in self.plan.entries(cell.collective) if (cell, str(entry)) not in refused]
            for cell in self.plan.cells(group.world)
        }
        return {cell: entries for cell, entries in competing.items() if entries}

    def _share(self) -> float:
        """Returns the seconds per figure with which the budget suffices for twice the least number of launches."""
        figures = sum(len(entries) for cells in self._competing.values() for entries in cells.values())
        share = 0.6 * self.plan.budget_s / (2 * self.plan.launches.least * max(figures, 1))
        return float(np.clip(share, *FIGURE_S))

    def unfinished(self, group: CellGroup) -> dict[Cell, list[Competitor]]:
        """Returns the cells of a group that need more launches."""
        rows = self.study.rows
        own = rows[(rows.world == group.world) & (rows.transport == group.transport)]
        if own.empty:
            return self._competing[group]
        counts = own.groupby(list(Cell._fields)).launch.nunique()
        enough = own[own.groupby(list(CELL)).launch.transform("nunique") >= self.plan.launches.least]
        table = summaries(enough)
        wide = table[~((table.high_us - table.low_us) / table.median_us <= self.plan.interval)]
        wide_cells = set(wide[list(Cell._fields)].itertuples(index=False, name=None))

        def goes_on(cell: Cell) -> bool:
            count = counts.get(tuple(cell), 0)
            return count < self.plan.launches.least or (
                count < self.plan.launches.most and tuple(cell) in wide_cells
            )

        return {cell: entries for cell, entries in self._competing[group].items() if goes_on(cell)}

    def next(self, budget_s: float) -> tuple[CellGroup, dict[Cell, list[Competitor]]] | None:
        """Returns the group with the fewest launches that needs another launch within the budget."""
        rows = self.study.rows
        done = rows.groupby(["world", "transport"]).launch.nunique()
        for group in sorted(self.groups(), key=lambda group: done.get(tuple(group), 0)):
            took = self._seconds.get(group)
            if took is not None and self.study.spent_s + took > budget_s:
                continue
            cells = self.unfinished(group)
            if cells:
                return group, cells
        return None

    def launch(self, group: CellGroup, cells: Mapping[Cell, Sequence[Competitor]]) -> None:
        """Measures cells of a group in a launch, and writes the folder."""
        study, rows = self.study, self.study.rows
        number = 0 if rows.empty else int(rows.launch.max()) + 1
        assert self.plan.seed is not None
        blocks = drawn(cells, (self.plan.seed, number))
        started, began = datetime.now(timezone.utc), time.monotonic()
        before = _engine.probe_exchange()
        found = self._measurer(group, blocks, self._figure_s)
        after = _engine.probe_exchange()
        mode = mode_of(before, after)
        shared = {
            "launch": number, "transport": group.transport, "mode": mode if mode in ("near", "far") else "",
            "probe_us": np.nan if before is None else round(before / 1e3, 4),
            "started": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }  # fmt: skip
        new = as_rows(
            {**row, **shared, "predicted_us": self._predicted(row, group, found)} for row in found.rows
        )
        study.rows = pd.concat([rows, new], ignore_index=True) if len(rows) else new
        study.refused += [{**row, "transport": group.transport} for row in found.refused]
        self._competing[group] = self._entries(group)
        study.facts["clock"] = found.clock
        starts = "on shared cores, one after the other" if found.crowded else "on all ranks at once"
        study.facts.setdefault("starts", {})[str(group)] = starts
        study.facts.setdefault("transports", {})[str(group)] = found.transport
        took = time.monotonic() - began
        study.spent_s += took
        self._seconds[group] = took
        save(study)

    def _predicted(self, row: Mapping[str, Any], group: CellGroup, found: Found) -> float:
        if self._predictor is None:
            return math.nan
        cell = _cell(row)
        entries = {str(entry): entry.name for entry in self.plan.entries(cell.collective)}
        return self._predictor.us(cell, entries[row["algorithm"]], found.transport, found.hosts)

    def _took(self) -> dict[CellGroup, float]:
        """Estimates how long a launch of each group takes in a study that continues: the mean over all launches."""
        launches = self.study.rows.launch.nunique()
        if not launches:
            return {}
        each = self.study.spent_s / launches
        done = self.study.rows[["world", "transport"]].drop_duplicates().itertuples(index=False, name=None)
        return {CellGroup(*group): each for group in done}
