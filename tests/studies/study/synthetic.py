"""A study that nobody has measured: its folder as `ringreduce study` writes it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from ringreduce.study.folder import COLUMNS

# Microseconds a call and bytes a microsecond, on two ranks. Two of them are the same: they tie.
ALGORITHMS = {
    "ring": (9, 6000),
    "one_shot": (1.2, 2500),
    "two_shot": (2, 5200),
    "tree": (3, 2100),
    "auto": (1.2, 2500),
}
SIZES = [8, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20]


def _time(name: str, world: int, nbytes: int) -> float:
    fixed, rate = ALGORITHMS.get(name, (4, 3000))
    return fixed * math.log2(world) + nbytes * (1 + 0.2 * world) / rate


def rows(names, worlds=(2, 4), launches=8, predict=True, collectives=("all_reduce", "broadcast")):
    noise = random.Random(5)
    for launch in range(launches):
        mode, slower = ("near", 1.0) if launch % 4 else ("far", 1.3)
        for block, (collective, world, nbytes) in enumerate(
            (c, w, n) for c in collectives for w in worlds for n in SIZES
        ):
            for order, name in enumerate(names if collective == "all_reduce" else ["tree", "chain"]):
                fair = _time(name, world, nbytes)
                us = fair * slower * math.exp(noise.gauss(0, 0.02))
                yield {
                    "launch": launch, "block": block, "order": order, "collective": collective, "algorithm": name,
                    "transport": "shm", "dtype": "float32", "wire": "", "world": world, "nbytes": nbytes,
                    "time_us": us, "q1_us": 0.97 * us, "q3_us": 1.05 * us, "min_us": 0.9 * us, "max_us": 3 * us,
                    "iterations": 100, "warmup": 7, "late": 0, "outliers_us": f"{2.5 * us:.3f} {3 * us:.3f}",
                    "mode": mode, "probe_us": 0.06 * slower, "started": f"2026-01-01T00:{launch:02}:00+00:00",
                    "predicted_us": fair * 1.08 if predict and name != "auto" else math.nan,
                }  # fmt: skip


def write(folder: Path, names=tuple(ALGORITHMS), **more) -> Path:
    """Writes the folder of a study of these algorithms."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "host": "example",
        "cpu": "a CPU <fast>",
        "cores": 2,
        "versions": {"python": "3.11", "numpy": "2"},
    }
    plan = {
        "algorithms": [{"name": name, "label": ""} for name in names],
        "sizes": SIZES,
        "worlds": [2, 4],
        "difference": 0.02,
    }
    head = {"format": 1, "ringreduce": "0.1.0", "plan": plan, "facts": facts}
    (folder / "study.json").write_text(json.dumps(head))
    import pandas as pd

    pd.DataFrame(list(rows(names, **more)), columns=list(COLUMNS)).to_csv(folder / "rows.csv", index=False)
    return folder
