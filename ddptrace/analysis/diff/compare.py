"""Compares two sides of runs, and checks the changes against limits such as `step>5%` and `exposed>2ms`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.diff.changes import Units, changes
from ddptrace.analysis.diff.one_run import COMPUTE, Floats, RunFigures, differing
from ddptrace.analysis.diff.tables import Basis, Change, ComparedRun, Diff, Quantity, Setting
from ddptrace.analysis.tables.table import Table
from ddptrace.errors import DdptraceError
from ddptrace.findings import FEW_RUNS, MEASURED_APART, NOT_IN_TURNS, SHORT_RUNS, TOLD_OF_ONE_SIDE, Finding

FEWEST_RUNS: Final = 4
"""Of both sides together. With three, one of them alone would tell how runs vary."""
PAIRS_MIN: Final = 6
"""With fewer pairs of runs, what is lost by counting each pair once is more than what pairs have in common."""
MEASURED: Final = ("part", "total", "bucket", "unit", "collective", "rank")
"""Kinds that cannot be compared between runs that took compute from different places."""
WHOLE: Final = ("unit", "collective")
"""Kinds of which a run shows all that it has."""
FEW: Final = (
    "{few}, so the variation between equal runs is unknown: these runs differ as shown, and the next ones may not."
    " Give several runs per side, recorded in turn (--repeat 6 makes them)"
)
WRITTEN: Final = re.compile(r"\s*(?P<what>[a-z]+)\s*>\s*(?P<amount>\d+(\.\d+)?)\s*(?P<unit>%|ns|us|µs|ms|s)\s*")
UNITS_NS: Final = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
QUANTITIES: Final = {
    "step": ("step", "step"),
    "compute": ("part", "compute"), "exposed": ("part", "exposed_comm"), "memory": ("part", "exposed_memory"),
    "idle": ("part", "idle"), "comm": ("total", "comm"),
    "data": ("phase", "data"), "forward": ("phase", "forward"), "backward": ("phase", "backward"),
    "optimizer": ("phase", "optimizer"), "other": ("phase", "other"),
    "bucket": ("bucket", "exposed"), "rank": ("rank", "compute"),
}  # fmt: skip


def compare(names: tuple[str, str], before: Sequence[RunFigures], after: Sequence[RunFigures]) -> Diff:
    """`names`: what the sides are called. Each has one run at least."""
    settings = differing([run.settings for run in before], [run.settings for run in after])
    quantities = _common((*before, *after), measured_alike=not _is_measured_apart(before, after))
    units = _units(before, after, quantities)
    means = [np.mean([_picked(run.values, run, quantities) for run in side], axis=0) for side in (before, after)]
    runs = _runs(before, after)
    return Diff(
        *names,
        units.basis,
        units.counts,
        _run_ratio(before, after),
        Table(ComparedRun, runs),
        Table(Change, list(changes(quantities, means[0], means[1], units))),
        Table(Setting, settings),
        Table(Finding, list(cautions(before, after, units.basis, runs))),
    )


def _is_measured_apart(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> bool:
    first, second = ({(run.settings.get(COMPUTE), run.evidence) for run in side} for side in (before, after))
    return not first & second


def _common(runs: Sequence[RunFigures], *, measured_alike: bool) -> list[Quantity]:
    """What all runs know, as the last one names it; and every unit and kind of collective that any of them has, since
    a run without it spent no time on it."""
    known = set.intersection(*({quantity.key for quantity in run.quantities} for run in runs))
    kinds = {quantity.key: quantity for run in runs for quantity in run.quantities if quantity.kind in WHOLE}
    every = [*(quantity for quantity in runs[-1].quantities if quantity.key in known - kinds.keys()), *kinds.values()]
    return [quantity for quantity in every if measured_alike or quantity.kind not in MEASURED]


def _picked(values: Floats, run: RunFigures, quantities: Sequence[Quantity]) -> Floats:
    """Of the run's `values` or `blocks`: these quantities, 0 where the run does not have them."""
    place = {quantity.key: at for at, quantity in enumerate(run.quantities)}
    with_nothing = np.concatenate((values, np.zeros((*values.shape[:-1], 1))), axis=-1)
    picked: Floats = with_nothing[..., [place.get(quantity.key, -1) for quantity in quantities]]
    return picked


def _units(before: Sequence[RunFigures], after: Sequence[RunFigures], quantities: Sequence[Quantity]) -> Units:
    runs = (*before, *after)
    is_after = np.arange(len(runs)) >= len(before)
    if len(runs) >= FEWEST_RUNS:
        values = np.array([_picked(run.values, run, quantities) for run in runs])
        pair = _pairs(runs, is_after)
        return Units("runs" if pair is None else "pairs", values, is_after, pair)
    blocks = [_picked(run.blocks, run, quantities) for run in runs]
    if min(map(len, blocks)) < 2:
        return Units("none", np.empty((0, len(quantities))), np.empty(0, np.bool_))
    return Units("blocks", np.concatenate(blocks), np.repeat(is_after, [len(block) for block in blocks]))


def _pairs(runs: Sequence[RunFigures], is_after: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """Of each run, where they took turns: the first and second that ran, the third and fourth, and so on are of both
    sides."""
    order = np.argsort([run.began_unix_ns for run in runs], kind="stable")
    if len(runs) % 2 or len(runs) < 2 * PAIRS_MIN or (is_after[order][::2] == is_after[order][1::2]).any():
        return None
    pair = np.empty(len(runs), np.int64)
    pair[order] = np.arange(len(runs)) // 2
    return pair


def _runs(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> list[ComparedRun]:
    """In the order in which they began."""
    sided = [("before", run) for run in before] + [("after", run) for run in after]
    sided.sort(key=lambda one: one[1].began_unix_ns)
    return [
        ComparedRun(
            "after" if side == "after" else "before",
            run.path,
            run.run_id,
            order,
            run.steps,
            round(run.step_ns),
            run.population,
        )
        for order, (side, run) in enumerate(sided)
    ]


def _run_ratio(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> float | None:
    sides = [np.array([run.step_ns for run in side]) for side in (before, after)]
    freedom = sum(len(side) - 1 for side in sides)
    if not freedom:
        return None
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    return float((squares / freedom) ** 0.5 / np.mean([side.mean() for side in sides]))


# What a reader has to know first --------------------------------------------------------------------------------------


def cautions(
    before: Sequence[RunFigures], after: Sequence[RunFigures], basis: Basis, runs: Sequence[ComparedRun]
) -> Iterator[Finding]:
    if basis in ("blocks", "none"):
        few = "one run per side" if len(runs) == 2 else f"{len(runs)} runs in all"
        yield FEW_RUNS("runs", FEW.format(few=few))
    if basis == "none":
        yield SHORT_RUNS(
            "runs",
            "a run has too few steps to estimate how much steps vary by chance: 17 or more are needed",
        )
    if min(len(before), len(after)) >= 2 and sum(one.side != two.side for one, two in pairwise(runs)) == 1:
        first, last = ("before", "after") if runs[0].side == "before" else ("after", "before")
        yield NOT_IN_TURNS(
            "runs",
            f"all runs of the {first} side ran before those of the {last} side: whatever else changed on the machines "
            "in between counts as a change here. Record them in turn (--repeat does)",
        )
    yield from _measured_apart(before, after)
    yield from _told_apart(before, after)


def _measured_apart(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> Iterator[Finding]:
    first, second = ({(run.settings.get(COMPUTE, "?"), run.evidence) for run in side} for side in (before, after))
    if not first & second:
        ways = [" or ".join(sorted(_how(*one) for one in side)) for side in (first, second)]
        yield MEASURED_APART(
            "runs",
            f"the sides were not measured alike (compute from {ways[0]} before, {ways[1]} after): parts, buckets and "
            "ranks are left out. Record both with a profiler window, or both without",
        )


def _how(compute: str, evidence: str) -> str:
    return f"{compute} and communication from {evidence or 'nothing'}"


def _told_apart(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> Iterator[Finding]:
    """Findings of all runs of one side and of none of the other."""
    counts = [Counter(code for run in side for code in run.findings) for side in (before, after)]
    for code in sorted({*counts[0], *counts[1]}):
        told = [count[code] for count in counts]
        if told in ([len(before), 0], [0, len(after)]):
            side, runs = ("before", len(before)) if told[0] else ("after", len(after))
            have = "run {} has" if runs == 1 else "runs {} have"
            yield TOLD_OF_ONE_SIDE(code, f"Only the {have.format(side)} the finding `{code}`.")


@dataclass(frozen=True, slots=True)
class Limit:
    """`ratio`: of the step before; or `ns`."""

    text: str
    what: str
    ns: float | None
    ratio: float | None


def parse_limit(text: str) -> Limit:
    """`QUANTITY>AMOUNT`. Raises DdptraceError with the way to write one."""
    found = WRITTEN.fullmatch(text)
    if found is None or found["what"] not in QUANTITIES:
        raise DdptraceError(
            f"{text!r} is no limit: write QUANTITY>AMOUNT, as in 'step>5%' (of the step before) or 'exposed>2ms', "
            f"where QUANTITY is one of {', '.join(QUANTITIES)}"
        )
    amount, unit = float(found["amount"]), found["unit"]
    if unit == "%":
        return Limit(text.strip(), found["what"], None, amount / 100)
    return Limit(text.strip(), found["what"], amount * UNITS_NS[unit], None)


def exceeding(diff: Diff, limit: Limit) -> list[Change]:
    """What surely got longer, and by more than the limit; of buckets and ranks each that did.

    Raises DdptraceError where nothing is sure with so few runs, or the quantity is not known on both sides: a check
    that could never fail would be worse than none.
    """
    if diff.basis in ("blocks", "none"):
        raise DdptraceError(
            f"{limit.text!r} cannot be checked with {len(diff.runs)} runs: the variation between equal runs is "
            "unknown; give 4 or more in all, better 6 per side"
        )
    rows = [row for row in diff.changes if (row.kind, row.name) == QUANTITIES[limit.what]]
    if not rows:
        raise DdptraceError(f"{limit.text!r} cannot be checked: not all runs on both sides have it")
    least = limit.ns if limit.ns is not None else (limit.ratio or 0.0) * diff.step.before_ns
    return [row for row in rows if row.is_sure and row.change_ns > least]
