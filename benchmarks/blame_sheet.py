"""The sheet of `blame`: what was planted and what was named, as sentences, tables and a chart."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.blame_plants import BLOCK_STEPS, NEAR, PLANTS, SETTLING_STEPS, Planted, is_near, together
from ddptrace.render.sheet import Chart, Grid, Line, Sheet
from ddptrace.units import NOT_MEASURED, counted, millis, percent

CAUSES_MIN_RATIO: Final = 66 / 70
"""Share of the planted runs that must name the right cause. All must name the right rank."""

HEALTHY: Final = "none"
"""Name of the plant in a run without one."""


def sheet(setup: Mapping[str, str], left_out: Mapping[str, str], runs: Sequence[Mapping[str, Any]]) -> Sheet:
    """Return the sheet. `left_out`: plants that this machine cannot have, and why."""
    planted = [Planted.of(run) for run in runs if run["plant"] != HEALTHY]
    healthy = [run for run in runs if run["plant"] == HEALTHY]
    words = (*_left_out(left_out), *_named(planted), *_costs(planted), *_alarms(healthy))
    grids = (
        *([_by_plant(planted), _each(planted)] if planted else []),
        *([_healthy(healthy)] if healthy else []),
    )
    title = "Planted causes: is the rank named, the cause, and what it costs?"
    return Sheet("blame", title, tuple(setup.items()), words, grids, tuple(_charts(planted)))


def _left_out(left_out: Mapping[str, str]) -> Iterator[str]:
    for name, why in left_out.items():
        yield f"Skipped: {name} ({PLANTS[name].what}), since {why}."


def _named(planted: Sequence[Planted]) -> Iterator[str]:
    if not planted:
        return
    ranks, causes = (sum(getattr(one, part) for one in planted) for part in ("is_rank_right", "is_cause_right"))
    of = len(planted)
    enough = ranks == of and causes >= CAUSES_MIN_RATIO * of
    yield (
        f"The late rank is named first in {ranks} of {of} runs, with the right cause in {causes}"
        f" (required: {of} and {round(CAUSES_MIN_RATIO * of)}): {'met' if enough else 'missed'}."
    )


def _costs(planted: Sequence[Planted]) -> Iterator[str]:
    """Judge the runs of a plant together, since the truth of single runs is not always known well enough."""
    ratios = {name: ratio for name, runs in _plants(planted) if (ratio := together(runs)) is not None}
    if not ratios:
        return
    near = sum(is_near(ratio) for ratio in ratios.values())
    sharp = [one for one in planted if one.is_truth_sharp]
    name = max(ratios, key=lambda name: abs(ratios[name] - 1))
    yield (
        f"The stated cost of all runs of a plant is within {percent(NEAR)} of the truth for {near} of"
        f" {counted(len(ratios), 'plant')}, furthest off for {name} ({ratios[name]:.2f} times the truth):"
        f" {'met' if near == len(ratios) else 'missed'}. Of single runs, {sum(one.is_near for one in sharp)} of"
        f" {len(sharp)} are."
    )
    if len(sharp) < len(planted):
        yield (
            f"This leaves out {counted(len(planted) - len(sharp), 'run')}, since their truth is not known within"
            f" {percent(NEAR)}."
        )


def _alarms(healthy: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if healthy:
        alarms = sum(bool(run["named"]) for run in healthy)
        yield (
            f"A rank is named in {alarms} of {counted(len(healthy), 'healthy run')} (required: 0):"
            f" {'missed' if alarms else 'met'}."
        )


NOTE: Final = (
    f"A plant is off for {BLOCK_STEPS} steps, then on for {BLOCK_STEPS}, and so on. Truth: median step with it less "
    f"the median without, leaving out the first {SETTLING_STEPS} of each {BLOCK_STEPS}; in brackets its 95 % interval, "
    "by the difference of each block from those beside it. Cost: of the first rank named, in a step with the plant. "
    "The table by plant compares the sum of costs with the sum of truths, of runs whose truth is known within "
    f"{percent(NEAR)}."
)


def _by_plant(planted: Sequence[Planted]) -> Grid:
    heads = (
        "plant",
        "what is wrong",
        "runs",
        "rank first",
        "cause",
        "cost ÷ truth",
        "single runs",
        "within 10 %",
        "truth ms",
    )
    return Grid("By plant", heads, tuple(_plant_row(name, runs) for name, runs in _plants(planted)), NOTE)


def _plants(planted: Sequence[Planted]) -> Iterator[tuple[str, list[Planted]]]:
    for name in PLANTS:
        runs = [one for one in planted if one.plant == name]
        if runs:
            yield name, runs


def _plant_row(name: str, runs: Sequence[Planted]) -> tuple[str, ...]:
    ratios = [one.ratio for one in runs if one.ratio is not None and one.is_truth_sharp]
    counts = (sum(getattr(one, part) for one in runs) for part in ("is_rank_right", "is_cause_right"))
    said = (f"{together(runs):.2f}", f"{min(ratios):.2f} .. {max(ratios):.2f}") if ratios else ()
    truth = statistics.median(one.truth["cost_ns"] for one in runs)
    return (
        name,
        PLANTS[name].what,
        str(len(runs)),
        *map(str, counts),
        *(said or (NOT_MEASURED, NOT_MEASURED)),
        f"{sum(one.is_near for one in runs if one.is_truth_sharp)} of {sum(one.is_truth_sharp for one in runs)}",
        millis(truth),
    )


def _each(planted: Sequence[Planted]) -> Grid:
    heads = ("plant", "ranks", "late", "named", "cause", "cost ms", "truth ms", "cost ÷ truth", "step ms", "named too")
    ordered = sorted(planted, key=lambda one: list(PLANTS).index(one.plant))
    return Grid("Each run with a plant", heads, tuple(map(_run_row, ordered)), NOTE)


def _run_row(one: Planted) -> tuple[str, ...]:
    first = one.named[0] if one.named else None
    who = (NOT_MEASURED, NOT_MEASURED) if first is None else (str(first["rank"]), first["cause"])
    truth = f"{millis(one.truth['cost_ns'])} ({millis(one.truth['low_ns'])} .. {millis(one.truth['high_ns'])})"
    ratio = NOT_MEASURED if one.ratio is None else f"{one.ratio:.2f}"
    others = ", ".join(f"{other['rank']}: {other['cause']}" for other in one.named[1:])
    return (
        one.plant,
        str(one.ranks),
        str(one.late),
        *who,
        millis(one.cost_ns),
        truth,
        ratio,
        millis(one.truth["plain_ns"]),
        others,
    )


def _healthy(runs: Sequence[Mapping[str, Any]]) -> Grid:
    heads = ("ranks", "runs", "alarms", "step ms", "highest cost", "what was named")
    note = "highest cost: of one rank, in one phase or in all phases, mean over the steps, as a share of the step."
    counts = sorted({run["ranks"] for run in runs})
    rows = (_healthy_row(count, [run for run in runs if run["ranks"] == count]) for count in counts)
    return Grid("Healthy runs", heads, tuple(rows), note)


def _healthy_row(ranks: int, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    named = [
        f"rank {one['rank']}: {one['cause']}, {percent(one['cost_ratio'])}" for run in runs for one in run["named"]
    ]
    return (
        str(ranks),
        str(len(runs)),
        str(sum(bool(run["named"]) for run in runs)),
        millis(statistics.median(run["truth"]["plain_ns"] for run in runs)),
        percent(max(run["highest_ratio"] for run in runs)),
        "; ".join(named),
    )


def _charts(planted: Sequence[Planted]) -> Iterator[Chart]:
    found = [(name, sorted(one.ratio for one in runs if one.ratio is not None)) for name, runs in _plants(planted)]
    told = [(name, ratios) for name, ratios in found if ratios]
    if told:
        names = tuple(name for name, _ in told)
        ends = (tuple(pick(ratios) for _, ratios in told) for pick in (statistics.median, min, max))
        line = Line("cost ÷ truth", names, *ends)
        yield Chart(
            "Stated cost over true cost",
            "plant",
            "ratio",
            (line,),
            "bars",
            caption="Median of the runs, and their range.",
        )
