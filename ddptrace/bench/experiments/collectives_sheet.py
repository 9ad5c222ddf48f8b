"""The sheet of `ddptrace bench collectives`: its tables, the chart of busbw over size, and its sentences.

A line is fitted to the times of each op on each number of ranks: t(n) = start + n / rate, by least squares on the
relative error, since a deviation of 10 µs means much at 4 kB and nothing at 1 GB.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.analysis.collectives.transfers import SIZES_MIN, SPAN_MIN, line
from ddptrace.bench.experiment import JobOptions, Measured, Section
from ddptrace.bench.timing import ROUNDS_SURE, Spread, interval_head, quantile
from ddptrace.ops import FACTORS
from ddptrace.render.sheet import Chart, Grid, Line
from ddptrace.units import NOT_MEASURED, counted, duration, percent, rate, size

NOTE: Final = (
    "time: of one call on the slowest rank, median over the rounds. timed: batches × calls in each. "
    "Calls of a batch follow each other without a barrier, as in nccl-tests, so calls of an op with one root may "
    "overlap. algbw: bytes / time. busbw: algbw times the factor of nccl-tests. send_recv: each even rank sends to its "
    "odd neighbour. exec by trace: execution of the same call, alone after a barrier, by the backend or the device, on "
    "the slowest rank, median of a traced run; nothing is computed beside it, so all of it is exposed. "
    "-: not measured, since a traced run would take too long, or since its trace does not show it."
)
FIT_HEADS: Final = (
    "op",
    "workers",
    "start",
    "range",
    "rate",
    "range",
    "mean error",
    "largest error",
    "start is half at",
)
FIT_NOTE: Final = (
    "time = start + bytes / rate, by least squares on the relative error of the medians. range: by resampling the "
    "rounds. error: how far the medians lie from the line. -: these sizes do not show it."
)
ROUNDS_MIN: Final = 3
"""Fewer rounds are not fitted."""
DRAWS: Final = 500
WRONG_MIN_RATIO: Final = 0.25
"""A line whose mean error exceeds this describes nothing."""
CALLED: Final = {
    "all_reduce": "An all-reduce",
    "all_gather": "An all-gather",
    "reduce_scatter": "A reduce-scatter",
    "broadcast": "A broadcast",
    "all_to_all": "An all-to-all",
    "reduce": "A reduce",
    "gather": "A gather",
    "scatter": "A scatter",
    "send_recv": "A send to a neighbour",
}

StartAndSlope = tuple[float, float]
"""Start in ns, slope in ns per byte."""
Triple = tuple[float | None, float | None, float | None]
"""A value and the ends of its interval. None: not known."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One op with one size on one number of ranks: the rounds' median times of a call."""

    op: str
    ranks: int
    nbytes: int
    rounds_ns: tuple[float, ...]
    time: Spread
    batches: str
    exec_ns: int | None
    evidence: str

    @property
    def algbw(self) -> float:
        return self.nbytes * 1e9 / self.time.median

    @property
    def busbw(self) -> float:
        return busbw(self.op, self.ranks, self.nbytes, self.time.median)


def busbw(op: str, ranks: int, nbytes: int, ns: float) -> float:
    """Return bytes per second on one link, as nccl-tests defines them."""
    return nbytes * 1e9 / ns * FACTORS["send" if op == "send_recv" else op](ranks)


def title(options: JobOptions, jobs: Sequence[Measured]) -> str:
    return "Collectives: time and bandwidth over size"


def sections(options: JobOptions, jobs: Sequence[Measured]) -> Iterator[Section]:
    """Yield one section that compares all jobs."""
    cells = [_cell(job["ranks"], cell) for job in jobs for cell in job["cells"]]
    fits = {key: fit({cell.nbytes: cell.rounds_ns for cell in mine}) for key, mine in _by_line(cells).items()}
    ops = dict.fromkeys(cell.op for cell in cells)
    words = fit_words({op: {ranks: fitted for (name, ranks), fitted in fits.items() if name == op} for op in ops})
    words += [ranges_words(cells)] if any(fits.values()) else []
    words += short_words([cell.time.count for cell in cells])
    words += traced_words([(cell.exec_ns, cell.time.median) for cell in cells], _evidence(cells))
    words += [sentence for job in jobs for sentence in job["skipped"]]
    seen = {key: found for key, found in fits.items() if found is not None}
    grids = [Grid("Collectives", _heads(cells), tuple(map(_row, cells)), NOTE)]
    grids += [
        Grid("Start and rate", FIT_HEADS, tuple(_fit_row(*key, fitted) for key, fitted in seen.items()), FIT_NOTE)
    ]
    yield Section(words, grids if seen else grids[:1], _chart(cells))


def _heads(cells: Sequence[Cell]) -> tuple[str, ...]:
    interval = interval_head(cell.time for cell in cells)
    return "op", "workers", "size", "time", interval, "algbw", "busbw", "exec by trace", "timed"


def ranges_words(cells: Sequence[Cell]) -> str:
    sure = min(cell.time.count for cell in cells) >= ROUNDS_SURE
    what = "are 95 % intervals" if sure else f"are 95 % intervals only from {ROUNDS_SURE} rounds on"
    return f"Ranges of a start or a rate {what}, by resampling the rounds; they do not include the error of the fit."


def short_words(rounds: Sequence[int]) -> list[str]:
    """Return a sentence on the cells that had time for too few rounds, if only some had."""
    few = sum(count < ROUNDS_SURE for count in rounds)
    if few in (0, len(rounds)):
        return []
    return [
        f"{few} of {counted(len(rounds), 'cell')} had time for fewer than {ROUNDS_SURE} rounds: their intervals are "
        "only the range of the rounds."
    ]


def traced_words(times: Sequence[tuple[int | None, float]], evidence: Sequence[str]) -> list[str]:
    """Return a sentence on the traces' exec times against the stopwatch's, given as (exec, stopwatch) in ns."""
    ratios = [exec_ns / watch_ns for exec_ns, watch_ns in times if exec_ns is not None]
    if not ratios:
        return ["No traced run shows when a collective itself ran."]
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    return [
        f"By the traces (evidence: {' and '.join(evidence)}) a collective itself ran for {middle:.2f} times the "
        f"stopwatch's time, the median of {counted(len(ratios), 'cell')} ({low:.2f} to {high:.2f}). Below 1, the rest "
        "is launching and noticing the end; above 1, the traced call, alone after a barrier and under a profiler, took "
        "longer than one in a batch."
    ]


def _cell(ranks: int, cell: dict[str, Any]) -> Cell:
    rounds = tuple(statistics.median(times) / cell["calls"] for times in cell["times_ns"])
    batches = f"{sum(map(len, cell['times_ns']))} × {cell['calls']}"
    return Cell(
        cell["op"], ranks, cell["nbytes"], rounds, Spread.of(rounds), batches, cell["exec_ns"], cell["evidence"]
    )


def _by_line(cells: Sequence[Cell]) -> dict[tuple[str, int], list[Cell]]:
    found: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.op, cell.ranks), []).append(cell)
    return dict(sorted(found.items(), key=lambda item: _place(cells, item[0])))


def _place(cells: Sequence[Cell], key: tuple[str, int]) -> tuple[int, int]:
    """Order by op as measured, then by number of ranks."""
    return list(dict.fromkeys(cell.op for cell in cells)).index(key[0]), key[1]


def _evidence(cells: Sequence[Cell]) -> list[str]:
    return sorted({cell.evidence for cell in cells if cell.evidence})


def _row(cell: Cell) -> tuple[str, ...]:
    interval = f"{duration(cell.time.low)} .. {duration(cell.time.high)}"
    return (
        cell.op,
        str(cell.ranks),
        size(cell.nbytes),
        duration(cell.time.median),
        interval,
        rate(cell.algbw),
        rate(cell.busbw),
        duration(cell.exec_ns),
        cell.batches,
    )


def _fit_row(op: str, ranks: int, fitted: Fit) -> tuple[str, ...]:
    seen = fitted.start_is_seen
    start = (duration(fitted.start_ns), f"{duration(fitted.start_low_ns)} .. {duration(fitted.start_high_ns)}")
    speed = (rate(fitted.rate), f"{rate(fitted.rate_low)} .. {rate(fitted.rate_high)}")
    off = (percent(fitted.rms_ratio), percent(fitted.worst_ratio))
    half = size(round(fitted.half_nbytes)) if seen and fitted.half_nbytes is not None else NOT_MEASURED
    return (op, str(ranks), *(start if seen else (NOT_MEASURED,) * 2), *speed, *off, half)


def _chart(cells: Sequence[Cell]) -> tuple[Chart, ...]:
    lines = tuple(_chart_line(op, ranks, mine) for (op, ranks), mine in _by_line(cells).items())
    caption = "Each line is an op with its number of workers. Bars span its interval over the rounds."
    title = "Bus bandwidth over size"
    chart = Chart(title, "size in MB", "busbw in MB/s", lines, log_x=True, log_y=True, caption=caption)
    return (chart,) if lines else ()


def _chart_line(op: str, ranks: int, cells: Sequence[Cell]) -> Line:
    low, mid, high = (
        tuple(busbw(cell.op, cell.ranks, cell.nbytes, getattr(cell.time, part)) / 1e6 for cell in cells)
        for part in ("high", "median", "low")
    )
    return Line(f"{op}, {ranks}", tuple(cell.nbytes / 1e6 for cell in cells), mid, low, high, kin=op)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted line. Intervals are 95 %, by resampling the rounds. `rms_ratio` and `worst_ratio`: how far the medians
    lie from the line, which resampling does not show."""

    start_ns: float
    start_low_ns: float
    start_high_ns: float
    rate: float | None  # bytes per second once started; all three None if the time does not surely grow with size
    rate_low: float | None
    rate_high: float | None
    half_nbytes: float | None  # a message of this size takes as long to start as to move; None as above
    half_low_nbytes: float | None
    half_high_nbytes: float | None
    rms_ratio: float
    worst_ratio: float
    least_nbytes: int
    most_nbytes: int
    least_ns: float  # median at the smallest size

    @property
    def start_is_seen(self) -> bool:
        """Whether the start at the smallest size exceeds the fit's error, and its interval excludes zero."""
        return self.start_low_ns > 0 and self.start_ns / self.least_ns > 2 * self.rms_ratio


def fit(rounds: Mapping[int, Sequence[float]]) -> Fit | None:
    """Fit the rounds' times in ns, by size in bytes. Returns None if sizes or rounds are too few or too close."""
    sizes = sorted(rounds)
    if len(sizes) < SIZES_MIN or sizes[-1] < SPAN_MIN * sizes[0] or min(map(len, rounds.values())) < ROUNDS_MIN:
        return None
    medians = [statistics.median(rounds[size]) for size in sizes]
    start, slope = line(sizes, medians)
    drawn = _resampled([rounds[size] for size in sizes], sizes)
    errors = [(start + slope * size) / time - 1 for size, time in zip(sizes, medians, strict=True)]
    return Fit(
        start,
        *_interval([start for start, _ in drawn]),
        *_rates(slope, drawn),
        *_halves((start, slope), drawn),
        statistics.mean(error**2 for error in errors) ** 0.5,
        max(map(abs, errors)),
        sizes[0],
        sizes[-1],
        medians[0],
    )


def _rates(slope: float, drawn: Sequence[StartAndSlope]) -> Triple:
    least, most = _interval([slope for _, slope in drawn])
    return (1e9 / slope, 1e9 / most, 1e9 / least) if least and slope else (None, None, None)


def _halves(found: StartAndSlope, drawn: Sequence[StartAndSlope]) -> Triple:
    """Use the draws that have a slope: nearly all of them, if the rate is known."""
    if _rates(found[1], drawn)[0] is None:
        return None, None, None
    return found[0] / found[1], *_interval([start / slope for start, slope in drawn if slope])


def _interval(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return quantile(ordered, 0.025), quantile(ordered, 0.975)


def _resampled(rounds: Sequence[Sequence[float]], sizes: Sequence[int]) -> list[StartAndSlope]:
    chance = random.Random(0)
    return [
        line(sizes, [statistics.median(chance.choices(times, k=len(times))) for times in rounds]) for _ in range(DRAWS)
    ]


def fit_words(fits: Mapping[str, Mapping[int, Fit | None]]) -> list[str]:
    """Return a sentence on each op with a fit for some number of ranks, and one on all other ops."""
    without = [op for op, of_op in fits.items() if not any(of_op.values())]
    sentences = [op_words(op, of_op) for op, of_op in fits.items() if op not in without]
    if without:
        wanted = f"{SIZES_MIN} sizes or more, {SPAN_MIN} times apart, in {ROUNDS_MIN} rounds or more"
        sentences.append(f"Start and rate are not fitted for {', '.join(without)}: a fit needs {wanted}.")
    return sentences


def op_words(op: str, fits: Mapping[int, Fit | None]) -> str:
    """Return one sentence on an op, with a part for each number of ranks."""
    parts = [f"over {counted(ranks, 'rank')} {_fitted_words(fitted)}" for ranks, fitted in fits.items()]
    return f"{CALLED[op]} {'; '.join(parts)}."


def _fitted_words(fitted: Fit | None) -> str:
    if fitted is None:
        return "has too few measurements for a fit"
    off = f"mean error of the fit {percent(fitted.rms_ratio)}, largest {percent(fitted.worst_ratio)}"
    if fitted.rms_ratio > WRONG_MIN_RATIO:
        return f"does not follow one start and one rate ({off})"
    if fitted.rate is None:
        sizes = f"from {size(fitted.least_nbytes)} to {size(fitted.most_nbytes)}"
        return f"does not surely take longer with a larger size, {sizes}, so it has no rate ({off})"
    moves = f"moves {rate(fitted.rate)} ({rate(fitted.rate_low)} to {rate(fitted.rate_high)})"
    if not fitted.start_is_seen:
        return f"{moves}, and its start is too short to measure with sizes from {size(fitted.least_nbytes)} up ({off})"
    start = f"{duration(fitted.start_ns)} ({duration(fitted.start_low_ns)} to {duration(fitted.start_high_ns)})"
    return f"starts in about {start} and then {moves}; {_half_words(fitted)} ({off})"


def _half_words(fitted: Fit) -> str:
    """Say up to which size the start dominates, but nothing beyond the measured sizes."""
    half, low, high = fitted.half_nbytes or 0, fitted.half_low_nbytes or 0, fitted.half_high_nbytes or 0
    if fitted.least_nbytes <= half <= fitted.most_nbytes:
        interval = f"{size(round(low))} to {size(round(high))}"
        return f"up to about {size(round(half))} ({interval}) the start takes more than half of the time"
    sure = high < fitted.least_nbytes or low > fitted.most_nbytes
    side = "less" if half < fitted.least_nbytes else "more"
    return f"at every measured size the start takes {'' if sure else 'about half or '}{side} than half of the time"
