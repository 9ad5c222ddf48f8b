"""The tables and charts of `ddptrace bench ddp`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Final

from ddptrace.bench.cells import chart_ms, comm_cells, interval_head, ratio_interval, spread_line
from ddptrace.bench.experiment import Repeats
from ddptrace.bench.experiments.ddp_cell import DDP, NULL, Cell
from ddptrace.render.sheet import Chart, Grid, Line
from ddptrace.units import NOT_MEASURED

STEP_HEADS: Final = (
    "model",
    "strategy",
    "cap_mb",
    "backend",
    "world_size",
    "global_batch_size",
    "warmup_steps",
    "benchmark_steps",
    "step_time_avg_s",
    "step_time_std_s",
    "comm_time_avg_s",
    "comm_time_std_s",
    "comm_frac_avg",
    "comm_frac_std",
    "true comm ms",
    "hidden ms",
    "exposed ms",
)
STEP_NOTE: Final = (
    "step_time: of the timed steps, on the slowest rank. comm_time, comm_frac: by a stopwatch around communication "
    "calls on the host, mean over the ranks, in separate steps (naive, flat: the blocking calls; overlap: asynchronous "
    "calls and waits; bucketed: launching to launched, as its observer reports; ddp: the asynchronous call in a "
    "communication hook). true comm, hidden, exposed: the typical step of a traced run. naive, flat and overlap have "
    "no cap. Stock DDP and bucketed also send rank 0's buffers before each forward, if the model has any."
)
RATIO_HEADS: Final = ("model", "cap_mb", "world_size", "strategy", "step ratio to ddp")
RATIO_NOTE: Final = (
    "A round's ratio is the strategy's median step over stock DDP's in the same round; the table shows the median over "
    "the rounds. The null control is a second instance of stock DDP: the distance of its ratio from 1 is noise."
)

RATIO_CAPTION: Final = "Bars span the interval over the rounds. 1 is stock DDP. The null control shows the noise."
COMM_CAPTION: Final = "A step of each: the time by a stopwatch on the host, and the time by the trace."


def steps_grid(cells: Sequence[Cell], repeats: Repeats) -> Grid:
    rows = tuple(_step_row(cell, strategy, repeats) for cell in cells for strategy in cell.strategies)
    return Grid("Steps", STEP_HEADS, rows, STEP_NOTE)


def _step_row(cell: Cell, strategy: str, repeats: Repeats) -> tuple[str, ...]:
    steps_s = [ns / 1e9 for times in cell.times_ns[strategy] for ns in times]
    comm_s = [ns / 1e9 for ns in cell.watched[strategy]["comm_ns"]]
    shares = cell.host_ratios(strategy)
    return (
        cell.model,
        strategy,
        cell.cap_mb,
        cell.backend,
        str(cell.ranks),
        str(cell.ranks * cell.batch_size),
        str(repeats.rounds * repeats.warmup),
        str(len(steps_s)),
        *_average_and_deviation(steps_s),
        *_average_and_deviation(comm_s),
        *_average_and_deviation(shares),
        *comm_cells(cell.traced[strategy])[:3],
    )


def _average_and_deviation(values: Sequence[float]) -> tuple[str, str]:
    """Return the mean, and the standard deviation of single values."""
    return f"{mean(values):.6f}", f"{stdev(values):.6f}" if len(values) > 1 else NOT_MEASURED


def ratios_grid(cells: Sequence[Cell]) -> Grid:
    rows = tuple(_ratio_row(cell, strategy) for cell in cells for strategy in cell.strategies if strategy != DDP)
    nulls = [cell.ratio(NULL) for cell in cells]
    of_null = interval_head(nulls, "null control's 95 % interval", "null control's range")
    heads = (*RATIO_HEADS, interval_head(nulls), NULL, of_null)
    return Grid("Step time to stock DDP's", heads, rows, RATIO_NOTE)


def _ratio_row(cell: Cell, strategy: str) -> tuple[str, ...]:
    found, null = cell.ratio(strategy), cell.ratio(NULL)
    where = cell.model, cell.cap_mb, str(cell.ranks), strategy
    return *where, f"{found.median:.3f}", ratio_interval(found), f"{null.median:.3f}", ratio_interval(null)


def charts(cells: Sequence[Cell]) -> tuple[Chart, ...]:
    compared = (*(name for name in cells[0].strategies if name != DDP), NULL)
    ratios = tuple(_ratio_bars(cells, strategy) for strategy in compared)
    return (
        Chart("Step time to stock DDP's", "", "ratio", ratios, "bars", caption=RATIO_CAPTION),
        Chart(
            "Communication: a stopwatch and the trace", "", "ms", _comm_bars(cells), kind="bars", caption=COMM_CAPTION
        ),
    )


def _ratio_bars(cells: Sequence[Cell], strategy: str) -> Line:
    return spread_line(strategy, [_label(cell) for cell in cells], [cell.ratio(strategy) for cell in cells])


def _comm_bars(cells: Sequence[Cell]) -> tuple[Line, ...]:
    places = [(cell, strategy) for cell in cells for strategy in cell.strategies]
    x = tuple(f"{_label(cell)}, {strategy}" for cell, strategy in places)
    host = Line("stopwatch", x, tuple(cell.host_comm_ns(strategy) / 1e6 for cell, strategy in places))
    in_trace = (
        Line(name, x, tuple(chart_ms(cell.traced[strategy][part]) for cell, strategy in places))
        for name, part in (("true, in the trace", "comm_ns"), ("of it exposed", "exposed_ns"))
    )
    return host, *in_trace


def _label(cell: Cell) -> str:
    return f"{cell.model}, cap {cell.cap_mb}, {cell.ranks} ranks"
