"""Tells two things that make steps slower: communication beside compute, and what varies from step to step.

Contention: work that ran beside communication is compared with the same work that ran alone. Two pieces of work with
one name may differ: a kernel sorts few keys here and many there. So two pieces are the same work if each is the n-th
with its name and scope in its step. Steps that have more or fewer of them than most steps are left out.

step 4    mm 0 ├──┤    mm 1 ├────────┤          mm 0: alone, as in step 6
step 5    mm 0 ├────┤  mm 1 ├────────┤          mm 0: beside communication; twice as long
comm           ├────────┤                       mm 1: partly beside it, so that it tells nothing

Jitter: the parts of a step are its phases, without the waiting in them, and the waiting. A part's share of the step's
variance is its covariance with the step, divided by that variance; the shares add up to 1. A part that is short when
the step is long has a share below 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.device.steps import DeviceWindow, device_spans
from ddptrace.analysis.intervals import Ints, Measure, Pieces, intersect, subtract, union
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.statistics import percentile
from ddptrace.analysis.steps.breakdown import communicating
from ddptrace.analysis.steps.phases import PHASE_NAMES
from ddptrace.analysis.summary import steady_steps
from ddptrace.analysis.tables.ranks import LOCAL_PHASES
from ddptrace.analysis.tables.steps import ContentionRow, JitterRow
from ddptrace.load.tables import Intervals, OperatorWork, Work

COVERED_RATIO: Final = 0.9
"""So much of it has to run beside communication to count as beside; alone is what has none."""

FEWEST: Final = 3
"""Of the same work, alone and beside, before anything is said."""


Key = tuple[str, str, str]
"""Name, module and operator around it; the latter are empty on a CPU, and where the trace does not tell."""

_Pair = tuple[Ints, Ints]


@dataclass(frozen=True, slots=True)
class _Works:
    """What computed in a step that is known, in the order in which the host came to it. Columns of shape (n,)."""

    key: Ints  # index into `keys`
    step: Ints  # position
    length_ns: Ints
    beside_ns: Ints  # of that, while communication ran
    keys: tuple[Key, ...]


def contention_rows(view: RankView) -> Iterator[ContentionRow]:
    """Dearest first; none without a profiler window, nor of work that ran in one of both ways only."""
    comm = communicating(view)
    looked = [_on_device(window) for window in view.device.profiled]
    looked += [_on_host(view, one.operators, comm) for one in view.rank.windows if one.operators is not None]
    if looked:
        rows = _compared(view.rank.rank, _together(looked))
        yield from sorted(rows, key=lambda row: (-row.tax_ns, row.name))


def _on_device(window: DeviceWindow) -> _Works:
    """Kernels, by the step that launched them."""
    work = window.work
    comm = union(device_spans(work, work.kind == Work.COMM))
    chosen = np.flatnonzero((work.kind == Work.COMPUTE) & (window.launched_by >= 0))
    chosen = chosen[np.argsort(work.launch_begin_at_ns[chosen], kind="stable")]
    scopes = np.column_stack((work.name, work.module, work.operator))[chosen]
    spans = work.begin_at_ns[chosen], work.end_at_ns[chosen]
    return _works(scopes, work.names, window.launched_by[chosen], spans, comm)


def _on_host(view: RankView, work: OperatorWork, comm: Intervals) -> _Works:
    """Operators, of the steps that lie in windows as a whole."""
    step = view.steps.at(work.begin_at_ns)
    chosen = np.flatnonzero(np.append(view.profiled, False)[step])  # the last one is for those outside all steps
    nothing = np.full(len(chosen), -1, np.int64)
    scopes = np.column_stack((work.name[chosen], nothing, nothing))
    return _works(scopes, work.names, step[chosen], (work.begin_at_ns[chosen], work.end_at_ns[chosen]), comm)


def _works(scopes: Ints, names: tuple[str, ...], step: Ints, spans: tuple[Ints, Ints], comm: Intervals) -> _Works:
    """`scopes`, shape (n, 3): name, module and operator, -1 for none."""
    used, key = np.unique(scopes, axis=0, return_inverse=True)
    texts = (*names, "")
    keys = tuple((texts[name], texts[module], texts[operator]) for name, module, operator in used.tolist())
    return _Works(key.reshape(-1), step, spans[1] - spans[0], Measure(comm).within(*spans), keys)


def _together(looked: Sequence[_Works]) -> _Works:
    """All windows as one."""
    keys = tuple(dict.fromkeys(key for works in looked for key in works.keys))
    number = {key: position for position, key in enumerate(keys)}
    columns = [(np.array([number[key] for key in works.keys], np.int64)[works.key], works) for works in looked]
    return _Works(
        np.concatenate([key for key, _ in columns]),
        np.concatenate([works.step for works in looked]),
        np.concatenate([works.length_ns for works in looked]),
        np.concatenate([one.beside_ns for one in looked]),
        keys,
    )


def _compared(rank: int, works: _Works) -> Iterator[ContentionRow]:
    """By name, what is the same work both alone and beside communication."""
    found: dict[str, list[_Pair]] = defaultdict(list)
    for key, alone_ns, beside_ns in _same_work(works):
        if min(len(alone_ns), len(beside_ns)) >= FEWEST:
            found[works.keys[key][0]].append((alone_ns, beside_ns))
    for name, both in found.items():
        alone = sum(len(alone_ns) for alone_ns, _ in both)
        would = np.concatenate([np.full(len(beside_ns), np.median(alone_ns)) for alone_ns, beside_ns in both])
        took = np.concatenate([beside_ns for _, beside_ns in both])
        medians = round(float(np.median(would))), round(float(np.median(took)))
        yield ContentionRow(rank, name, alone, len(took), *medians, round(float(took.sum() - would.sum())))


def _same_work(works: _Works) -> Iterator[tuple[int, Ints, Ints]]:
    """By key and place in the step: the lengths alone, and those beside communication."""
    place, usual = _places(works)
    known = usual & (works.length_ns > 0)
    beside = works.beside_ns >= COVERED_RATIO * works.length_ns
    told = np.flatnonzero(known & (beside | (works.beside_ns == 0)))
    told = told[np.lexsort((place[told], works.key[told]))]
    key, nth = works.key[told], place[told]
    firsts = np.flatnonzero((np.diff(key, prepend=-1) != 0) | (np.diff(nth, prepend=-1) != 0))
    for same in np.split(told, firsts)[1:]:
        yield int(works.key[same[0]]), works.length_ns[same[~beside[same]]], works.length_ns[same[beside[same]]]


def _places(works: _Works) -> tuple[Ints, NDArray[np.bool_]]:
    """Which of its key in its step each is, from 0, and whether that step has as many of them as most steps have."""
    order = np.lexsort((works.step, works.key))  # stable: in the host's order within both
    cells, first, cell, count = np.unique(
        np.column_stack((works.key, works.step))[order],
        axis=0,
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    cell = cell.reshape(-1)
    place, usual = np.empty(len(order), np.int64), np.empty(len(order), np.bool_)
    place[order] = np.arange(len(order)) - first[cell]
    usual[order] = (count == _most_frequent(cells[:, 0], count))[cell]
    return place, usual


def _most_frequent(key: Ints, count: Ints) -> Ints:
    """Of each key's counts the one that most of its cells have, the largest of several; by cell."""
    pairs, times = np.unique(np.column_stack((key, count)), axis=0, return_counts=True)
    best = pairs[np.lexsort((pairs[:, 1], times, pairs[:, 0]))]  # by key the last one
    last = np.searchsorted(best[:, 0], key, side="right") - 1
    found: Ints = best[last, 1]
    return found


# What varies from step to step ----------------------------------------------------------------------------------------


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
