"""What was planted, what was found, and what was called different and is not, as sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from ddptrace.render.sheet import Grid, Sheet
from ddptrace.render.words import NOT_MEASURED, counted, millis

ASKED: Final = 19 / 20
"""Of the tries, in which the answer has to be right."""

NEAR: Final = 2.5
"""Deviations of its own plain runs: a try with less is one in which the machine got noisier after it was planned."""

TITLE: Final = "Comparing runs: is a change found, and none where there is none?"
NOTE: Final = (
    "Planted: what is sent beside the bucket takes so long on the link. Deviations: of the try's own plain runs. Step: "
    "what the comparison tells, with its 95 % interval. False: what it calls sure about the equal sides."
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
    return f"Equal sides: nothing is called sure in {right} of {counted(of, 'try', 'tries')}: {_met(right, of)}."


def _planted(real: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield _found("Sides that differ", real)
    kept = [one for one in real if one["deviations"] >= NEAR]
    if 0 < len(kept) < len(real):
        yield _found(f"Of these, where {NEAR:g} deviations of their own plain runs or more are planted", kept)


def _found(what: str, tries: Sequence[Mapping[str, Any]]) -> str:
    found, step = (sum(one[name] for one in tries) for name in ("is_found", "step_is_found"))
    named, of = sum(one["named"] == one["bucket"] for one in tries), len(tries)
    planted = median(one["deviations"] for one in tries)
    return (
        f"{what} (median {planted:.1f}): a change is found in {found} of {of}: {_met(found, of)}; in the step itself in"
        f" {step}: {_met(step, of)}; the bucket is named in {named}: {_met(named, of)}."
    )


def _met(right: int, of: int) -> str:
    return "met" if right >= ASKED * of else "missed"


def _drawn(drawn: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in drawn:
        false, found, named = (one[name] / one["draws"] for name in ("false", "found_step", "named"))
        quiet, seen = "met" if false <= 1 - ASKED else "missed", "met" if found >= ASKED else "missed"
        yield (
            f"{one['draws']} times {one['runs']} runs a side drawn from the plain ones: something is called sure in"
            f" {100 * false:.1f} % ({quiet}, 5 % may be). With three deviations of all plain runs"
            f" ({millis(one['added_ns'])} ms) added to one side by a bucket, the longer step is found in"
            f" {100 * found:.1f} % ({seen}, 95 % are asked for), and the bucket named in {100 * named:.1f} %."
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
