"""The sheet of `collectives`: tables, the chart of busbw over size, and sentences."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.bench.cells import interval_head
from ddptrace.bench.experiment import JobOptions, Measured, Section
from ddptrace.bench.experiments.collectives_fit import Fit, fit, fit_words
from ddptrace.bench.timing import ROUNDS_SURE, Spread
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
    lines = tuple(_line(op, ranks, mine) for (op, ranks), mine in _by_line(cells).items())
    caption = "Each line is an op with its number of workers. Bars span its interval over the rounds."
    title = "Bus bandwidth over size"
    chart = Chart(title, "size in MB", "busbw in MB/s", lines, log_x=True, log_y=True, caption=caption)
    return (chart,) if lines else ()


def _line(op: str, ranks: int, cells: Sequence[Cell]) -> Line:
    low, mid, high = (
        tuple(busbw(cell.op, cell.ranks, cell.nbytes, getattr(cell.time, part)) / 1e6 for cell in cells)
        for part in ("high", "median", "low")
    )
    return Line(f"{op}, {ranks}", tuple(cell.nbytes / 1e6 for cell in cells), mid, low, high, kin=op)
