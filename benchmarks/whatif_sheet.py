"""The sheet of `whatif`: how far predictions are off, for each model and link."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.whatif_program import LOOPBACK
from ddptrace.bench.timing import quantile
from ddptrace.render.sheet import Chart, Grid, Line, Sheet
from ddptrace.units import millis, percent

Run = Mapping[str, Any]

NEAR_RATIO: Final = 0.03
NOISE_TIMES: Final = 1.5
FAR_RATIO: Final = 0.08
EXPOSED_RATIO: Final = 0.10
EXPOSED_OF_STEP_RATIO: Final = 0.02
GOOD_RATIO: Final = 0.95
PLACES: Final[Mapping[str, Callable[[str], bool]]] = {
    "Between hosts": lambda rate: rate != LOOPBACK,
    "On one host, where ranks share processors": lambda rate: rate == LOOPBACK,
}
HEADS: Final = (
    "model",
    "link",
    "settings",
    "predictions",
    "error, median",
    "90 %",
    "as near as noise",
    "exposed as near",
    "in interval",
    "regret, worst",
    "noise, median",
)
NOTE: Final = (
    "The steps of each plain setting predict all others. As near as noise: off by at most 3 %, or 1.5 times the"
    " difference between the halves of the measured steps. Exposed as near: off by at most 10 % of the exposed time, or"
    " 2 % of the step. Regret: how much longer the advised setting takes than the best measured one."
)


def sheet(setup: Mapping[str, str], left_out: str, runs: Sequence[Run]) -> Sheet:
    """Return the sheet. `left_out`: why there are no links with a set rate; empty if there are."""
    rows = [row for run in runs for row in run["rows"]]
    words = (*(f"Links with a set rate are skipped: {left_out}." for _ in range(bool(left_out))), *_words(rows, runs))
    grid = Grid("Held-out predictions", HEADS, tuple(map(_row, runs)), NOTE)
    steps = Grid("Steps", ("model", "link", "setting", "step ms", "replay off"), tuple(_steps(runs)))
    return Sheet(
        "whatif",
        "What if: predicted from one run, and measured",
        tuple(setup.items()),
        words,
        (grid, steps),
        _charts(rows),
    )


def _words(rows: Sequence[Run], runs: Sequence[Run]) -> Iterator[str]:
    if not rows:
        yield "Nothing was measured."
        return
    for place, is_there in PLACES.items():
        yield from _place(place, [run for run in runs if is_there(run["rate"])])


def _place(place: str, runs: Sequence[Run]) -> Iterator[str]:
    rows = [row for run in runs for row in run["rows"]]
    if not rows:
        return
    errors = sorted(abs(row["error_ratio"]) for row in rows)
    middle, far = statistics.median(errors), quantile(errors, 0.9)
    near = max(NEAR_RATIO, NOISE_TIMES * statistics.median(row["noise_ratio"] for row in rows))
    settings = sum(len(run["truths"]) for run in runs)
    yield (
        f"{place}: {len(rows)} predictions of {settings} settings, each from the steps of another one, are off by"
        f" {middle:.1%} in the median and {far:.1%} at 90 % (required: at most {near:.1%} and {FAR_RATIO:.0%}:"
        f" {_met(middle <= near and far <= FAR_RATIO)}); {_share(rows, _is_near)} are as near as noise allows,"
        f" {_share(rows, _is_exposed_near)} in exposed time, {_share(rows, _is_within)} within their interval."
    )
    regrets = [one for run in runs for one in run["regrets"]]
    good = sum(one["regret_ratio"] <= max(NEAR_RATIO, one["noise_ratio"]) for one in regrets)
    yield (
        f"{place}: the advised setting is within 3 %, or the noise, of the best measured one in {good} of"
        f" {len(regrets)} recordings (required: 95 %: {_met(good >= GOOD_RATIO * len(regrets))})."
    )


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def _row(run: Run) -> tuple[str, ...]:
    rows = run["rows"]
    errors = sorted(abs(row["error_ratio"]) for row in rows)
    regret = max((one["regret_ratio"] for one in run["regrets"]), default=0.0)
    noise = statistics.median(one["noise_ratio"] for one in run["truths"].values())
    return (
        run["model"],
        run["rate"],
        str(len(run["truths"])),
        str(len(rows)),
        f"{statistics.median(errors):.1%}",
        f"{quantile(errors, 0.9):.1%}",
        _share(rows, _is_near),
        _share(rows, _is_exposed_near),
        _share(rows, _is_within),
        f"{regret:.1%}",
        f"{noise:.1%}",
    )


def _share(rows: Sequence[Run], is_so: Any) -> str:
    return percent(sum(map(is_so, rows)) / len(rows)) if rows else "-"


def _is_near(row: Run) -> bool:
    return bool(abs(row["error_ratio"]) <= max(NEAR_RATIO, NOISE_TIMES * row["noise_ratio"]))


def _is_within(row: Run) -> bool:
    return bool(row["is_within"])


def _is_exposed_near(row: Run) -> bool:
    off = row["exposed_off_ratio"]
    return row["exposed_of_step_ratio"] <= EXPOSED_OF_STEP_RATIO or (off is not None and off <= EXPOSED_RATIO)


def _steps(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    for run in runs:
        for name, truth in run["truths"].items():
            yield run["model"], run["rate"], name, millis(truth["step_ns"]), f"{run['replays'][name]:+.1%}"


def _charts(rows: Sequence[Run]) -> tuple[Chart, ...]:
    """Chart predicted over measured steps, one line of points for each link."""
    lines = tuple(
        Line(rate, *_points([row for row in rows if row["rate"] == rate]))
        for rate in dict.fromkeys(row["rate"] for row in rows)
    )
    title = "Predicted over measured step"
    return (Chart(title, "measured ms", "predicted ms", lines, log_x=True, log_y=True),) if lines else ()


def _points(rows: Sequence[Run]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    ordered = sorted(rows, key=lambda row: row["measured_ns"])
    return tuple(row["measured_ns"] / 1e6 for row in ordered), tuple(row["step_ns"] / 1e6 for row in ordered)
