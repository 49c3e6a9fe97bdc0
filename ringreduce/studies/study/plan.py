"""The plan of a study, which is read from a TOML file, and its cells and entries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from ringreduce import schedules
from ringreduce.annotations import Transport
from ringreduce.schedules.registry import is_in_a_file
from ringreduce.settings import Table, first_problem, read
from ringreduce.studies.bench.options import TRANSPORTS, read_files
from ringreduce.studies.bench.ours import COLLECTIVES, ROUNDING
from ringreduce.studies.bench.problem import BLOCKWISE, EXACT, Problem, numpy_dtype
from ringreduce.studies.study.inference import DIFFERENCE
from ringreduce.text import byte_count

__all__ = ["Cell", "Competitor", "LaunchLimits", "Plan", "read_plan", "restored"]


def _one_of(known: Iterable[str], what: str) -> BeforeValidator:
    names = tuple(known)

    def check(name: object) -> object:
        if name not in names:
            raise ValueError(f"there is no {what} {name!r}; choose from {', '.join(filter(None, names))}")
        return name

    return BeforeValidator(check)


def _bytes(value: Any) -> Any:
    return byte_count(value) if isinstance(value, str) else value


def _entry(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Competitor(Table):
    """An algorithm that competes.

    Attributes:
        name: An algorithm of the catalogue, "auto", a registered algorithm, or one in a file ("my.py:ring_of_pairs").
        label: Its name in the results, by default ``name``. An algorithm may compete under several labels.
    """

    name: str
    label: str = ""

    def __str__(self) -> str:
        return self.label or self.name


class LaunchLimits(Table):
    """The least and the most launches for each cell. Each launch starts new ranks."""

    least: int = Field(default=8, ge=1)
    most: int = Field(default=40, ge=1)


Size = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
Algorithm = Annotated[Competitor, BeforeValidator(_entry)]
World = Annotated[int, Field(ge=2)]


class Plan(Table):
    """The plan of a study. Its cells are all combinations of collectives, transports, dtypes, wires, worlds and sizes.

    Attributes:
        collectives: The collectives.
        algorithms: The algorithms that compete in each cell. "all" means all that the catalogue has for a collective.
        sizes: Sizes of the whole buffer in bytes. They are rounded up so that every rank has a whole block.
        worlds: Numbers of ranks.
        transports: The transports.
        dtypes: The dtypes of the buffers.
        wires: The wire formats of messages. "" means the dtype of the buffer.
        budget_s: Seconds that the study may take.
        launches: The least and the most launches for each cell.
        figure_s: Seconds for one algorithm in one launch. None derives it from the budget.
        interval: A cell is done when no interval is wider than this fraction of its median.
        difference: The smallest difference of interest, as a fraction of the time.
        seed: The seed of the random order. None draws one, which is recorded.
        model: A model of ``ringreduce fit`` or a network file, which predicts the times for comparison.
    """

    collectives: list[Annotated[str, _one_of(COLLECTIVES, "collective")]] = Field(
        default=["all_reduce"], min_length=1
    )
    algorithms: list[Algorithm] = Field(default=[Competitor(name="all")], min_length=1)
    sizes: list[Size] = Field(default=[8, 512, 8 << 10, 128 << 10, 1 << 20, 8 << 20], min_length=1)
    worlds: list[World] = Field(default=[2, 4], min_length=1)
    transports: list[Annotated[Transport, _one_of(TRANSPORTS, "transport")]] = Field(
        default=["shm"], min_length=1
    )
    dtypes: list[Annotated[str, _one_of(EXACT, "dtype")]] = Field(default=["float32"], min_length=1)
    wires: list[Annotated[str, _one_of(("", *ROUNDING), "wire format")]] = Field(default=[""], min_length=1)
    budget_s: float = Field(default=300.0, gt=0)
    launches: LaunchLimits = LaunchLimits()
    figure_s: float | None = Field(default=None, gt=0)
    interval: float = Field(default=0.05, gt=0)
    difference: float = Field(default=DIFFERENCE, ge=0)
    seed: int | None = Field(default=None, ge=0)
    model: Path | None = None

    @field_validator("launches")
    @classmethod
    def _ordered(cls, launches: LaunchLimits) -> LaunchLimits:
        if launches.least > launches.most:
            raise ValueError(f"least ({launches.least}) must not exceed most ({launches.most})")
        return launches

    @field_validator("algorithms")
    @classmethod
    def _distinct(cls, entries: list[Competitor]) -> list[Competitor]:
        labels = [str(entry) for entry in entries]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(
                    f'{label!r} appears twice; give one of them a label: {{name = "{label}", label = "..."}}'
                )
        return entries

    def entries(self, collective: str) -> list[Competitor]:
        """Returns the entries that compete in a collective: those whose algorithm the collective has."""
        known = [entry.name for entry in schedules.algorithms(collective)]
        catalogue = [name for name in known if not is_in_a_file(name)]
        found: dict[str, Competitor] = {}
        for entry in self.algorithms:
            if entry.name == "all":
                found.update(
                    (name, Competitor(name=name)) for name in ("auto", *catalogue) if name not in found
                )
            elif entry.name == "auto" or entry.name in known:
                found[str(entry)] = entry
        return list(found.values())

    def files(self) -> dict[str, str]:
        """Returns a digest of each file that contains algorithms, by path."""
        paths = sorted({one.name.rpartition(":")[0] for one in self.algorithms if is_in_a_file(one.name)})
        return {path: hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] for path in paths}

    def check(self) -> None:
        """Registers the functions in files, and checks the algorithms.

        Raises:
            ValueError: No collective has an algorithm, or a collective has none of the algorithms.
        """
        read_files([entry.name for entry in self.algorithms], self.worlds[0])
        used = {str(entry) for collective in self.collectives for entry in self.entries(collective)}
        for entry in self.algorithms:
            if entry.name != "all" and str(entry) not in used:
                raise ValueError(
                    f"algorithms: {', '.join(self.collectives)}: no algorithm is called {entry.name!r}"
                )
        for collective in self.collectives:
            if not self.entries(collective):
                raise ValueError(f"algorithms: none of them is for {collective}")

    def cells(self, world: int) -> list[Cell]:
        """Returns the cells of a world, which do not include the transport."""
        return list(
            dict.fromkeys(
                Cell(collective, dtype, wire, world, _whole_blocks(collective, nbytes, dtype, world))
                for collective in self.collectives
                for dtype in self.dtypes
                for wire in self.wires
                for nbytes in self.sizes
            )
        )


class Cell(NamedTuple):
    """A problem for which algorithms compete over one transport."""

    collective: str
    dtype: str
    wire: str
    world: int
    nbytes: int

    def problem(self) -> Problem:
        return Problem(self.collective, self.nbytes, self.dtype)


def _whole_blocks(collective: str, nbytes: int, dtype: str, world: int) -> int:
    unit = numpy_dtype(dtype).itemsize * (world if collective in BLOCKWISE else 1)
    return -(-nbytes // unit) * unit


def read_plan(path: Path) -> Plan:
    """Reads a plan from a file.

    Raises:
        ValueError: The file cannot be read, or something in it is wrong. The message is one line that names the file
            and the place in it.
    """
    plan = read(path, Plan)
    found: dict[str, Any] = {"algorithms": [_from(path.parent, entry) for entry in plan.algorithms]}
    if plan.model is not None:
        found["model"] = (path.parent / plan.model).resolve()
    plan = plan.model_copy(update=found)
    try:
        plan.check()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return plan


def _from(folder: Path, entry: Competitor) -> Competitor:
    """Resolves the path of an algorithm that is named by a plan in a folder."""
    if not is_in_a_file(entry.name):
        return entry
    return Competitor(name=str((folder / entry.name).resolve()), label=str(entry))


def restored(kept: dict[str, Any], where: Path) -> Plan:
    """Returns the plan that a study's folder holds."""
    try:
        plan = Plan.model_validate(kept)
        plan.check()
    except ValidationError as error:
        raise ValueError(f"{where}: plan.{first_problem(error)}") from error
    except ValueError as error:
        raise ValueError(f"{where}: plan.{error}") from error
    return plan


def different(
    one: Plan, other: Plan, but: Sequence[str] = ("budget_s", "launches", "interval", "seed")
) -> list[str]:
    """Returns the keys in which plans differ, except those that only determine when to stop."""
    return [key for key in Plan.model_fields if key not in but and getattr(one, key) != getattr(other, key)]
