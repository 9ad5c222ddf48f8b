"""What varies from step to step, by phase and rank.

A step is its phases without waiting, and the waiting: the parts' shares of its variance are what each of them varies
along with it, and add up to 1. A part that is short when the step is long has a share below 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints, Measure, Pieces, intersect, subtract
from ddptrace.analysis.percentile import percentile
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.steps.phases import PHASE_NAMES
from ddptrace.analysis.summary import steady_steps
from ddptrace.analysis.tables.ranks import LOCAL_PHASES
from ddptrace.analysis.tables.steps import JitterRow

FEWEST_STEPS: Final = 10
"""Of fewer, nothing is said: the variance would be an accident's."""

SPREAD_OF_DEVIATION: Final = 1.4826
"""A normal distribution's standard deviation, of its median absolute deviation."""


def waited_in_phases(view: RankView) -> tuple[tuple[int, ...], ...]:
    """By step, how long the host was blocked on collectives in each of `LOCAL_PHASES`, less what it computed there."""
    waits, steps = subtract(view.waits.host, view.host_compute), view.steps
    phases = view.phases.split(steps.begins, steps.ends)
    labels = np.maximum(view.phases.at(phases[1]), 0)  # outside all marks is other, as in the phases' own table
    cut = Pieces(phases[1], phases[2], labels)
    columns = [
        Measure(intersect(waits, _spans(cut, PHASE_NAMES.index(name)))).within(steps.begins, steps.ends)
        for name in LOCAL_PHASES
    ]
    return tuple(zip(*(column.tolist() for column in columns), strict=True))


def _spans(pieces: Pieces, label: int) -> Ints:
    spans = pieces.only(label).spans()
    return spans[spans[:, 1] > spans[:, 0]]


def jitter_rows(table: RankTables) -> Iterator[JitterRow]:
    """Of one rank, by part, the step itself last; none where it has too few steps. Where of a step's collectives nobody
    knows whether the host waited for them, waiting is a part of the phases."""
    steps = steady_steps(table.steps)
    if len(steps) < FEWEST_STEPS:
        return
    known = all(row.wait_ns is not None for row in steps) and len(table.waited_ns) == len(table.steps)
    waited = {row.step: waits for row, waits in zip(table.steps, table.waited_ns, strict=False)}
    phases = np.array([[getattr(row, f"{name}_ns") for name in LOCAL_PHASES] for row in steps], np.int64)
    waits = np.array([waited[row.step] for row in steps], np.int64) if known else np.zeros_like(phases)
    parts = dict(zip(LOCAL_PHASES, (phases - waits).T, strict=True))
    if known:
        parts["waiting"] = waits.sum(axis=1)
    whole = np.array([row.wall_ns for row in steps], np.int64)
    for name, part in parts.items():
        yield _jitter_row(table.row.rank, name, part, _share(part, whole))
    yield _jitter_row(table.row.rank, "step", whole, None)


def _jitter_row(rank: int, part: str, ns: Ints, share: float | None) -> JitterRow:
    middle = float(np.median(ns))
    spread = SPREAD_OF_DEVIATION * float(np.median(np.abs(ns - middle)))
    return JitterRow(rank, part, len(ns), round(middle), percentile(sorted(ns.tolist()), 95), round(spread), share)


def _share(part: Ints, whole: Ints) -> float | None:
    """None where no step differs from another."""
    both: NDArray[np.float64] = np.cov(part, whole, bias=True)
    return float(both[0, 1] / both[1, 1]) if both[1, 1] > 0 else None
