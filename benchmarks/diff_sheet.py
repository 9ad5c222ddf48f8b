"""The sheet of `diff`: what was planted, what was found, and what was wrongly called a change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

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
