"""The sheet of `collectives`: tables, the chart of busbw over size, and sentences on starts and rates."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.analysis.collectives.bandwidth import FACTORS
from ddptrace.bench.cells import interval_head
from ddptrace.bench.collectives.fit import Fit, fit
from ddptrace.bench.collectives.words import fit_words, short_words, traced_words
from ddptrace.bench.setup import merged
from ddptrace.bench.statistics import ROUNDS_SURE, Spread
from ddptrace.render.sheet import Chart, Grid, Line, Sheet
from ddptrace.render.words import NOT_MEASURED, duration, percent, rate, size

NOTE: Final = (
    "time: of one call on the slowest rank, median over the rounds; timed: batches × calls in each. "
    "Calls of a batch follow each other without a barrier, as in nccl-tests, so those of an op with one root may "
    "overlap. algbw: bytes / time; busbw: algbw times the factor of nccl-tests. send_recv: each even rank sends to its "
    "odd neighbour. exec by trace: the same call alone after a barrier, as the backend or the device ran it on the "
    "slowest rank, median of a traced run; nothing was computed beside it, so all of it is exposed. "
    "-: not measured, since a traced run of it would take too long, or its trace did not show it."
)
FIT_HEADS: Final = ("op", "workers", "start", "range", "rate", "range", "off by, mean", "at most", "start is half at")
FIT_NOTE: Final = (
    "time = start + bytes / rate, by least squares on the relative error of the medians. range: by resampling the "
    "rounds; off by: how far the line lies from the medians. -: not to be told from these sizes."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One op over so many ranks with one size: the rounds' median times of a call."""

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
    """Bytes per second on one link, by the definition of nccl-tests."""
    return nbytes * 1e9 / ns * FACTORS["send" if op == "send_recv" else op](ranks)


def sheet_of(measured: Sequence[dict[str, Any]]) -> Sheet:
    """One sheet of all jobs."""
    cells = [_cell(job["ranks"], cell) for job in measured for cell in job["cells"]]
    fits = {key: fit({one.nbytes: one.rounds_ns for one in mine}) for key, mine in _by_line(cells).items()}
    words = fit_words({op: {ranks: found for (name, ranks), found in fits.items() if name == op}
                       for op in dict.fromkeys(cell.op for cell in cells)})  # fmt: skip
    words += [ranges_words(cells)] if any(fits.values()) else []
    words += short_words([one.time.count for one in cells])
    words += traced_words([(one.exec_ns, one.time.median) for one in cells], _evidence(cells))
    words += [sentence for job in measured for sentence in job["skipped"]]
    seen = {key: found for key, found in fits.items() if found is not None}
    grids = [Grid("Collectives", _heads(cells), tuple(map(_row, cells)), NOTE)]
    grids += [Grid("Start and rate", FIT_HEADS, tuple(_fit_row(*key, one) for key, one in seen.items()), FIT_NOTE)]
    title = "Collectives: time and bandwidth over size"
    return Sheet(
        "collectives", title, merged(measured), tuple(words), tuple(grids if seen else grids[:1]), _chart(cells)
    )


def _heads(cells: Sequence[Cell]) -> tuple[str, ...]:
    interval = interval_head(cell.time for cell in cells)
    return "op", "workers", "size", "time", interval, "algbw", "busbw", "exec by trace", "timed"


def ranges_words(cells: Sequence[Cell]) -> str:
    sure = min(cell.time.count for cell in cells) >= ROUNDS_SURE
    what = "are 95 % intervals" if sure else f"are 95 % intervals only from {ROUNDS_SURE} rounds on"
    return f"Ranges of a start or a rate {what}, by resampling the rounds; they do not show how far a fit is off."


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
    """Ops in the order in which they were measured, each with its numbers of ranks."""
    return list(dict.fromkeys(cell.op for cell in cells)).index(key[0]), key[1]


def _evidence(cells: Sequence[Cell]) -> list[str]:
    return sorted({cell.evidence for cell in cells if cell.evidence})


def _row(cell: Cell) -> tuple[str, ...]:
    interval = f"{duration(cell.time.low)} .. {duration(cell.time.high)}"
    return (
        cell.op, str(cell.ranks), size(cell.nbytes), duration(cell.time.median), interval, rate(cell.algbw),
        rate(cell.busbw), duration(cell.exec_ns), cell.batches,
    )  # fmt: skip


def _fit_row(op: str, ranks: int, one: Fit) -> tuple[str, ...]:
    seen = one.start_is_seen
    start = (duration(one.start_ns), f"{duration(one.start_low_ns)} .. {duration(one.start_high_ns)}")
    speed = (rate(one.rate), f"{rate(one.rate_low)} .. {rate(one.rate_high)}")
    off = (percent(one.rms_ratio), percent(one.worst_ratio))
    half = size(round(one.half_nbytes)) if seen and one.half_nbytes is not None else NOT_MEASURED
    return (op, str(ranks), *(start if seen else (NOT_MEASURED,) * 2), *speed, *off, half)


def _chart(cells: Sequence[Cell]) -> tuple[Chart, ...]:
    lines = tuple(_line(op, ranks, mine) for (op, ranks), mine in _by_line(cells).items())
    caption = "Each line is an op over so many workers; bars span its interval over the rounds."
    title = "Bus bandwidth over size"
    chart = Chart(title, "size in MB", "busbw in MB/s", lines, log_x=True, log_y=True, caption=caption)
    return (chart,) if lines else ()


def _line(op: str, ranks: int, cells: Sequence[Cell]) -> Line:
    low, mid, high = (
        tuple(busbw(one.op, one.ranks, one.nbytes, getattr(one.time, part)) / 1e6 for one in cells)
        for part in ("high", "median", "low")
    )
    return Line(f"{op}, {ranks}", tuple(one.nbytes / 1e6 for one in cells), mid, low, high, kin=op)
