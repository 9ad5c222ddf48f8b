"""The sheet of `diff`: what was planted, what was found, and what was wrongly called a change.

A comparison is judged by runs whose truth is known: those of each try, and sides drawn from all.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any, Final

import numpy as np

from benchmarks.diff_program import LAYERS
from ddptrace.analysis.diff.compare import compare
from ddptrace.analysis.diff.one_run import RunFigures
from ddptrace.analysis.diff.tables import Diff, Quantity
from ddptrace.differ import read_figures
from ddptrace.render.sheet import Grid, Sheet
from ddptrace.units import NOT_MEASURED, counted, millis

ASKED: Final = 19 / 20
"""Share of the tries that must be right."""

NEAR: Final = 2.5
"""Standard deviations of a try's own plain runs. In a try with less, the machine got noisier after it was planned."""

TITLE: Final = "Comparing runs: is a change found, and none where there is none?"
NOTE: Final = (
    "planted: the time on the link of what is sent beside the bucket. deviations: the same in standard deviations of "
    "the try's own plain runs. step, change: by the comparison, with its 95 % interval. false: what the comparison of "
    "the equal sides calls a sure change."
)
HEADS: Final = (
    "try",
    "load",
    "planted ms",
    "deviations",
    "step ms",
    "change ms",
    "95 %",
    "step found",
    "bucket",
    "named",
    "false",
)

DRAWS: Final = 400
DEVIATIONS: Final = 3.0
LONGER: Final = (
    ("step", "step"),
    ("part", "exposed_comm"),
    ("total", "comm"),
    ("phase", "backward"),
    ("rank", "exposed_comm"),
)
"""Quantities that more communication makes longer, beside the bucket itself."""
Turn = Mapping[str, RunFigures]


def sheet(setup: Mapping[str, Any], found: Mapping[str, Any]) -> Sheet:
    real: Sequence[Mapping[str, Any]] = found["real"]
    words = (_equal(real), *_planted(real), *_drawn(found["drawn"]))
    tries = Grid("Tries", HEADS, tuple(_row(at, one) for at, one in enumerate(real, start=1)), NOTE)
    return Sheet("diff", TITLE, tuple(setup.items()), words, (tries, _draws(found["drawn"])))


def _equal(real: Sequence[Mapping[str, Any]]) -> str:
    right, of = sum(not one["false"] for one in real), len(real)
    return f"Equal sides: no sure change in {right} of {counted(of, 'try', 'tries')}: {_met(right, of)}."


def _planted(real: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield _found("Sides that differ", real)
    kept = [one for one in real if one["deviations"] >= NEAR]
    if 0 < len(kept) < len(real):
        yield _found(f"Of these, those with {NEAR:g} or more deviations of their own plain runs", kept)


def _found(what: str, tries: Sequence[Mapping[str, Any]]) -> str:
    found, step = (sum(one[name] for one in tries) for name in ("is_found", "step_is_found"))
    named, of = sum(one["named"] == one["bucket"] for one in tries), len(tries)
    planted = median(one["deviations"] for one in tries)
    return (
        f"{what} (median {planted:.1f} deviations): a change is found in {found} of {of}: {_met(found, of)}; in the"
        f" step itself in {step}: {_met(step, of)}; the bucket is named in {named}: {_met(named, of)}."
    )


def _met(right: int, of: int) -> str:
    return "met" if right >= ASKED * of else "missed"


def _drawn(drawn: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in drawn:
        false, found, named = (one[name] / one["draws"] for name in ("false", "found_step", "named"))
        quiet, seen = "met" if false <= 1 - ASKED else "missed", "met" if found >= ASKED else "missed"
        yield (
            f"{one['draws']} draws of {one['runs']} runs a side from the plain runs: {100 * false:.1f} % report a sure"
            f" change (at most 5 %: {quiet}). With three deviations of all plain runs ({millis(one['added_ns'])} ms)"
            f" added to a bucket of one side, {100 * found:.1f} % report the longer step (at least 95 %: {seen}), and"
            f" {100 * named:.1f} % name the bucket."
        )


def _row(at: int, one: Mapping[str, Any]) -> tuple[str, ...]:
    planted, step, change, low, high = (
        millis(one[name]) for name in ("planted_ns", "step_ns", "change_ns", "low_ns", "high_ns")
    )
    return (
        str(at),
        f"{one['load']:.1f}",
        planted,
        f"{one['deviations']:.1f}",
        step,
        change,
        f"{low} .. {high}",
        "yes" if one["step_is_found"] else "no",
        str(one["bucket"]),
        NOT_MEASURED if one["named"] is None else str(one["named"]),
        ", ".join(one["false"]),
    )


def _draws(drawn: Sequence[Mapping[str, Any]]) -> Grid:
    names = ("runs", "draws", "false", "false_step", "found", "found_step", "named")
    rows = tuple(tuple(str(one[name]) for name in names) for one in drawn)
    heads = (
        "runs a side",
        "draws",
        "equal: anything sure",
        "the step",
        "longer: anything sure",
        "the step",
        "the bucket",
    )
    return Grid("Sides drawn from the plain runs", heads, rows)


@dataclass(frozen=True, slots=True)
class Try:
    """One try. `deviation_ns`: of its plain runs' typical step, by a stopwatch. `planted_ns`: time of the planted bytes
    on the link."""

    bucket: int
    planted_ns: float
    deviation_ns: float
    load: float  # of the machine at its end: mean number of processes that wanted a processor, in a minute


def judged(folder: Path, tries: Sequence[Try]) -> dict[str, Any]:
    """Judge the comparisons. `real`: of each try. `drawn`: by runs a side, how often sides drawn from the plain runs
    are called different, as they are and with `added_ns` more in each step of one side."""
    turns = [_turns(folder / f"{at:03d}") for at in range(len(tries))]
    return {
        "real": [_real(one, mine) for one, mine in zip(tries, turns, strict=True)],
        "drawn": [_drawn_sides(turns, runs) for runs in (3, 4, 5, 6, 8) if runs <= sum(map(len, turns))],
    }


def _turns(folder: Path) -> list[Turn]:
    count = sum(1 for path in (folder / "plain").iterdir() if path.is_dir())
    kinds = sorted(path.name for path in folder.iterdir())
    return [
        {kind: next(read_figures([(folder / kind / str(turn),)], jobs=1)) for kind in kinds} for turn in range(count)
    ]


def _real(one: Try, turns: Sequence[Turn]) -> dict[str, Any]:
    plain, equal, planted = ([turn[kind] for turn in turns] for kind in ("plain", "equal", "planted"))
    same, other = compare(("plain", "equal"), plain, equal), compare(("plain", "planted"), plain, planted)
    return {
        "bucket": one.bucket,
        "planted_ns": one.planted_ns,
        "deviations": one.planted_ns / one.deviation_ns,
        "load": one.load,
        "false": _false(same),
        "equal_p": same.step.p,
        "step_is_found": other.step.is_sure and other.step.change_ns > 0,
        "is_found": other.is_changed,
        "change_ns": other.step.change_ns,
        "low_ns": other.step.low_ns,
        "high_ns": other.step.high_ns,
        "step_ns": other.step.before_ns,
        "named": None if other.bucket is None else other.bucket.index,
    }


def _false(diff: Diff) -> list[str]:
    """Return the changes that are called sure."""
    return [f"{row.kind} {row.name}" for row in diff.changes if row.is_sure]


def _drawn_sides(tries: Sequence[Sequence[Turn]], runs: int) -> dict[str, Any]:
    """Draw turns that follow each other, also across tries, and the side of each of their two plain runs. Compare them
    as they are, and with `DEVIATIONS` of all plain runs added to a random bucket of one side."""
    drawn, turns = random.Random(runs), [turn for mine in tries for turn in mine]
    added_ns = DEVIATIONS * deviation_ns(tries)
    counts = Counter[str]()
    for _ in range(DRAWS):
        begin, bucket = drawn.randrange(len(turns) - runs + 1), drawn.randrange(LAYERS)
        one, other = _sides(drawn, turns[begin : begin + runs])
        same = compare(("one", "other"), one, other)
        longer = compare(("one", "other"), one, [with_longer(run, bucket, added_ns) for run in other])
        named = longer.bucket is not None and longer.bucket.index == bucket
        counts.update(
            false=same.is_changed,
            false_step=same.step.is_sure,
            found=longer.is_changed,
            found_step=longer.step.is_sure,
            named=named,
        )
    return {"runs": runs, "draws": DRAWS, "added_ns": added_ns, **counts}


def deviation_ns(tries: Sequence[Sequence[Turn]]) -> float:
    """Return the standard deviation of plain runs' steps within the sides of a try."""
    sides = [[turn[kind].step_ns for turn in mine] for mine in tries for kind in ("plain", "equal")]
    return math.sqrt(fmean(map(variance, sides)))


def with_longer(run: RunFigures, bucket: int, added_ns: float) -> RunFigures:
    """Return the run as if the bucket's communication had taken `added_ns` longer, all exposed."""
    adds = [added_ns * _is_longer(one, bucket) for one in run.quantities]
    return replace(run, values=run.values + np.array(adds))


def _is_longer(what: Quantity, bucket: int) -> bool:
    of_bucket = what.bucket is not None and what.bucket.index == bucket
    return of_bucket or (what.kind, what.name) in LONGER


def _sides(drawn: random.Random, turns: Sequence[Turn]) -> Iterator[list[RunFigures]]:
    ways = [drawn.sample(("plain", "equal"), 2) for _ in turns]
    for side in (0, 1):
        yield [turn[way[side]] for turn, way in zip(turns, ways, strict=True)]
