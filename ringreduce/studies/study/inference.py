"""Statistics of a study's rows: intervals of medians, winners, and differences between two studies.

The launch is the unit of replication. Each launch contributes one number, the median over its iterations. The tests
compare ratios, so they use logarithms of times.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from ringreduce.studies.bench.results import bus_factor
from ringreduce.studies.study.folder import CELL

__all__ = ["CONFIDENCE", "DIFFERENCE", "changes", "summaries", "winners"]

CONFIDENCE = 0.95
DIFFERENCE = 0.02
"""The smallest difference of interest, as a fraction of the time. Algorithms that differ by less tie."""
TRIMMED = 0.1
"""The fraction of the launches that tests drop at either end. With ten or more, one outlier decides nothing."""
RESAMPLES = 2000

Array = np.ndarray[Any, np.dtype[Any]]


def summaries(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the median time of each algorithm in each cell, with its interval.

    The result has a row for each cell and algorithm. ``median_us`` is the median over the launches. ``low_us`` and
    ``high_us`` bound its 95 % bootstrap interval (percentile method), which resamples launches within the modes of the
    machine. They are NaN if there is only one launch. ``busbw`` and ``algbw`` are in bytes per second.
    """
    found = []
    for cell, group in rows.groupby(list(CELL), sort=True):
        times = _by_launch(group)
        modes = group.groupby("launch")["mode"].first()
        for _, some in times.T.groupby(
            times.notna().T.apply(tuple, axis=1)
        ):  # algorithms that were measured in the same launches
            own = some.dropna(axis=1)
            low, high = _intervals(own.to_numpy(), modes[own.columns].to_numpy())
            medians = own.median(axis=1)
            for at, name in enumerate(own.index):
                found.append((*cell, name, own.shape[1], float(medians[name]), low[at], high[at]))
    names = [*CELL, "algorithm", "launches", "median_us", "low_us", "high_us"]
    table = pd.DataFrame(found, columns=names)
    factor = [bus_factor(name, world) for name, world in zip(table.collective, table.world, strict=True)]
    table = table.sort_values([*CELL, "algorithm"], ignore_index=True)
    table["algbw"] = table.nbytes / table.median_us * 1e6
    table["busbw"] = table.algbw * factor
    return table


def _by_launch(group: pd.DataFrame) -> pd.DataFrame:
    """Returns the times of a cell, with a row for each launch and a column for each algorithm."""
    return group.pivot_table("time_us", "launch", "algorithm", aggfunc="median", sort=True)


def _intervals(times: Array, modes: Array) -> tuple[Array, Array]:
    """Returns the ends of the intervals of the rows' medians. Each column is a launch, and has an entry in modes."""
    if times.shape[1] < 2:
        nothing = np.full(len(times), math.nan)
        return nothing, nothing
    strata = [times[:, modes == mode] for mode in np.unique(modes)]
    drawn = [part for part in strata if part.shape[1] > 1]
    # Single launches are always drawn, because scipy needs samples of two or more.
    alone = [part for part in strata if part.shape[1] == 1]
    if not drawn:
        return times.min(axis=1), times.max(axis=1)

    def median(*parts: Array, axis: int) -> Any:
        # scipy calls this with the data, and then with an additional axis for the resamples.
        fixed = [part if parts[0].ndim == 2 else part[:, None] for part in alone]
        fixed = [np.broadcast_to(part, (*parts[0].shape[:-1], 1)) for part in fixed]
        return np.median(np.concatenate([*parts, *fixed], axis=axis), axis=axis)

    return _bootstrap(drawn, median)


def _bootstrap(samples: list[Array], statistic: Callable[..., Any]) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal times cause warnings
        found = stats.bootstrap(
            samples, statistic, axis=-1, vectorized=True, method="percentile", n_resamples=RESAMPLES,
            confidence_level=CONFIDENCE, random_state=np.random.default_rng(0),
        )  # fmt: skip
    return found.confidence_interval.low, found.confidence_interval.high


def winners(rows: pd.DataFrame, difference: float = DIFFERENCE) -> pd.DataFrame:
    """Returns the algorithms that tie for first place in each cell, and how far behind the next one is.

    Each algorithm outside the tie is shown to take more than ``difference`` longer than each algorithm inside.
    Algorithms for which this is not shown tie, because they are equally fast or because there are too few launches to
    tell. Two equal algorithms therefore never end up on different sides because of a third one.

    Each pair of algorithms is compared with a t-test of the differences of the logarithms of their times in the same
    launches (the launch is the block). The null hypothesis is that the slower one takes at most ``difference`` longer.
    The test uses trimmed means (Tukey and McLaughlin 1963; Yuen 1974), so that a single outlier does not decide it.
    Holm's method, over all pairs of all cells, keeps the probability of any false statement below 5 %.

    The result has a row for each cell, with these columns besides those of the cell:

    - ``winners``: The algorithms in the tie, the fastest first.
    - ``fastest``: The fastest algorithm.
    - ``behind``: The algorithms in the tie that are shown to be slower than the fastest, but not slower than the
      whole tie.
    - ``second``: The best algorithm outside the tie. If all tie, the one with the second lowest median. If there is
      only one, "".
    - ``ratio``: The time of ``second`` divided by the time of ``fastest``. NaN if all tie.
    - ``p``: The largest adjusted p-value of the comparisons of ``second`` with the tie or, if all tie, of its
      comparison with ``fastest``. NaN if there is only one algorithm.
    """
    cells = [(cell, _by_launch(group)) for cell, group in rows.groupby(list(CELL), sort=True)]
    pairs = [_slower(times, math.log1p(difference)) for _, times in cells]
    adjusted = _holm(np.concatenate([*(p.ravel() for p in pairs), np.empty(0)]))
    found, at = [], 0
    for (cell, times), own in zip(cells, pairs, strict=True):
        p = pd.DataFrame(adjusted[at : at + own.size].reshape(own.shape), times.columns, times.columns)
        at += own.size
        found.append((*cell, *_placed(times.median(), p)))
    return pd.DataFrame(found, columns=[*CELL, "winners", "fastest", "behind", "second", "ratio", "p"])


def _slower(times: pd.DataFrame, margin: float) -> Array:
    """Returns p[i, j] for the hypothesis that algorithm i is not slower than j by more than the margin."""
    logs = np.log(times.dropna().to_numpy())
    launches, count = logs.shape
    p = np.ones((count, count))
    if launches > 1:
        differences = logs[:, :, None] - logs[:, None, :] - margin
        kept = launches - 2 * int(TRIMMED * launches)
        middle = stats.trim_mean(differences, TRIMMED, axis=0)
        inner = stats.mstats.winsorize(differences, (TRIMMED, TRIMMED), axis=0)
        spread = np.asarray(inner).std(axis=0, ddof=1)
        error = spread * math.sqrt((launches - 1) / (kept * (kept - 1)))
        with np.errstate(all="ignore"):  # equal differences give 0/0
            p = np.nan_to_num(stats.t.sf(middle / error, kept - 1), nan=1.0)
    np.fill_diagonal(p, math.nan)
    return p


def _holm(p: Array) -> Array:
    """Adjusts the values that are not NaN with Holm's method."""
    known = ~np.isnan(p)
    adjusted = p.copy()
    if known.any():
        adjusted[known] = multipletests(p[known], method="holm")[1]
    return adjusted


def _placed(median: pd.Series, p: pd.DataFrame) -> tuple[Any, ...]:
    """Returns a cell's winners, fastest, behind, second, ratio and p."""
    order = list(median.sort_values(kind="stable").index)
    fastest, slower = order[0], p < 1 - CONFIDENCE
    if len(order) == 1:
        return (fastest,), fastest, (), "", math.nan, math.nan
    cuts = (cut for cut in range(1, len(order)) if slower.loc[order[cut:], order[:cut]].all(axis=None))
    cut = next(cuts, len(order))
    tie, out = order[:cut], order[cut:]
    behind = tuple(name for name in tie[1:] if slower.loc[name, fastest])
    if not out:
        return tuple(tie), fastest, behind, order[1], math.nan, float(p.loc[order[1], fastest])
    return (
        tuple(tie), fastest, behind, out[0], float(median[out[0]] / median[fastest]), float(p.loc[out[0], tie].max())
    )  # fmt: skip


def changes(before: pd.DataFrame, after: pd.DataFrame, difference: float = DIFFERENCE) -> pd.DataFrame:
    """Compares two studies: returns the time after divided by the time before.

    The result has a row for each cell and algorithm that both studies have:

    - ``mode``: The machine mode that is compared: the one with the most launches in both studies.
    - ``before_us``, ``after_us``: The median times in microseconds.
    - ``ratio``, ``low``, ``high``: ``after_us`` divided by ``before_us``, and its 95 % bootstrap interval.
    - ``p``: Launches of two studies are not paired, so the test is Yuen's, of trimmed means of the logarithms. The
      null hypothesis is that neither is slower by more than ``difference``. Adjusted with Holm's method over all rows.
    - ``change``: "slower", "faster" or "" (not shown to differ).
    """
    names = [*CELL, "algorithm"]
    old = dict(iter(before.groupby(names)))
    found = []
    for key, new in after.groupby(names, sort=True):
        if key in old:
            found.append((*key, *_changed(old[key], new, math.log1p(difference))))
    columns = [*names, "mode", "before_us", "after_us", "ratio", "low", "high", "p"]
    table = pd.DataFrame(found, columns=columns)
    table["p"] = _holm(table.p.to_numpy(dtype=float))
    real = table.p < 1 - CONFIDENCE
    table["change"] = np.where(real, np.where(table.ratio > 1, "slower", "faster"), "")
    return table


def _changed(before: pd.DataFrame, after: pd.DataFrame, margin: float) -> tuple[Any, ...]:
    mode = _common_mode(before, after)
    old, new = (
        rows[rows["mode"] == mode].groupby("launch").time_us.median().to_numpy() for rows in (before, after)
    )
    if not len(old) or not len(new):
        return mode, *(float(rows.time_us.median()) for rows in (before, after)), *[math.nan] * 4
    middle = float(np.median(old)), float(np.median(new))
    if len(old) < 2 or len(new) < 2:
        return mode, *middle, middle[1] / middle[0], math.nan, math.nan, math.nan

    def ratio(a: Array, b: Array, axis: int) -> Any:
        return np.median(b, axis=axis) / np.median(a, axis=axis)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sides = [
            stats.ttest_ind(a + margin, b, equal_var=False, alternative="less", trim=TRIMMED).pvalue
            for a, b in ((np.log(old), np.log(new)), (np.log(new), np.log(old)))
        ]
    p = min(1.0, 2 * float(np.nan_to_num(sides, nan=1.0).min()))
    return mode, *middle, middle[1] / middle[0], *_bootstrap([old, new], ratio), p


def _common_mode(before: pd.DataFrame, after: pd.DataFrame) -> str:
    """Returns the mode for which the smaller of the two numbers of launches is largest."""
    counts = [rows.groupby("mode").launch.nunique() for rows in (before, after)]
    both = pd.concat(counts, axis=1).fillna(0).min(axis=1)
    return str(both.idxmax())
