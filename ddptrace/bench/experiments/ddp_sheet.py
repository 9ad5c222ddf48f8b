"""The sheet of `ddptrace bench ddp`: each model at each bucket cap as tables, charts and sentences."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any, Final

from ddptrace.bench.experiment import Repeats
from ddptrace.bench.timing import (
    ROUNDS_SURE,
    Rounds,
    Spread,
    chart_ms,
    comm_cells,
    interval_head,
    median_interval,
    quantile,
    ratio,
    ratio_interval,
    spread_line,
)
from ddptrace.render.sheet import Chart, Grid, Line
from ddptrace.render.words import EVIDENCE
from ddptrace.schema import Evidence
from ddptrace.units import NOT_MEASURED, counted, duration, millis

DDP: Final = "ddp"
NULL: Final = "null control"
OWN: Final = "bucketed"

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

TOO_SLOW_RATIO: Final = 1.05
DRAWS: Final = 2000
FAR_RATIO: Final = 1.5
"""Ratio from which a stopwatch is called misleading. Steps and traced steps are not the same steps."""
APPROXIMATE: Final = (Evidence.CALLBACK.value, Evidence.HOST.value)


@dataclass(frozen=True, slots=True)
class Cell:
    """`cap_mb`: in MiB, as the user typed it. `parameters`: number of tensors. `batch_size`: of one rank.

    `times_ns`: step times by strategy, with the null control's. `watched`: by strategy, `step_ns` and `comm_ns` of the
    steps with a stopwatch. `traced`: by strategy, a `TypicalStep` with `transfer_ns`; empty on ranks other than 0.
    """

    model: str
    cap_mb: str
    backend: str
    ranks: int
    parameters: int
    nbytes: int
    batch_size: int
    times_ns: dict[str, Rounds]
    watched: dict[str, dict[str, list[int]]]
    traced: dict[str, dict[str, Any]]

    @property
    def strategies(self) -> tuple[str, ...]:
        """All measured strategies, without the null control."""
        return tuple(name for name in self.times_ns if name != NULL)

    def ratios(self, strategy: str) -> list[float]:
        """Return, by round, the strategy's median step over stock DDP's."""
        pairs = zip(self.times_ns[strategy], self.times_ns[DDP], strict=True)
        return [median(times) / median(others) for times, others in pairs]

    def ratio(self, strategy: str) -> Spread:
        return ratio(self.times_ns[strategy], self.times_ns[DDP])

    @property
    def label(self) -> str:
        """The cell's name in a sentence."""
        return f"{self.model} at cap {self.cap_mb} MiB on {self.ranks} ranks"

    def comm_ratio(self, strategy: str) -> float | None:
        """Return the share of the traced step in which the backend communicated, 0..1."""
        typical = self.traced[strategy]
        comm, window = typical["comm_ns"], typical["window_ns"]
        return comm / window if comm is not None and window else None

    def host_ratios(self, strategy: str) -> list[float]:
        """Return the share of each watched step that the host spent in communication calls, 0..1."""
        seen = self.watched[strategy]
        return [comm / step for comm, step in zip(seen["comm_ns"], seen["step_ns"], strict=True)]

    def host_ratio(self, strategy: str) -> float:
        return mean(self.host_ratios(strategy))

    def host_step_ns(self, strategy: str) -> float:
        """Return the mean step with a stopwatch, in ns."""
        return mean(self.watched[strategy]["step_ns"])

    def host_comm_ns(self, strategy: str) -> float:
        return mean(self.watched[strategy]["comm_ns"])


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


def compared(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield sentences on step times: our reducer over all cells, then every strategy in each cell."""
    if all(OWN in cell.strategies for cell in cells):
        yield _over_all(cells)
        yield from _slow_ones(cells)
    for cell in cells:
        others = [name for name in cell.strategies if name not in (DDP, OWN)]
        if others:
            yield _beside(cell, others)


def _over_all(cells: Sequence[Cell]) -> str:
    own, null = (over_cells([cell.ratios(name) for cell in cells]) for name in (OWN, NULL))
    rounds = min(cell.ratio(OWN).count for cell in cells)
    return (
        f"Over {counted(len(cells), 'cell')} the median of the ratios bucketed ÷ ddp is {_with_interval(own, rounds)}; "
        f"the null control's, stock DDP ÷ itself, is {_with_interval(null, rounds)}."
    )


def over_cells(ratios: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the median over cells of each cell's median round, and its 95 % interval by resampling each cell's rounds.
    The cells are no sample of other cells, so they are not resampled.

    One cell has the interval of its own median: resampling 7 rounds would hold that in 87 % of cases only."""
    chance = random.Random(0)
    if len(ratios) == 1 and len(ratios[0]) >= ROUNDS_SURE:
        return median(ratios[0]), *median_interval(ratios[0])

    def drawn() -> float:
        return median(median(chance.choices(rounds, k=len(rounds))) for rounds in ratios)

    found = sorted(drawn() for _ in range(DRAWS))
    return median(map(median, ratios)), quantile(found, 0.025), quantile(found, 0.975)


def _with_interval(found: tuple[float, float, float], rounds: int) -> str:
    what = "95 %" if rounds >= ROUNDS_SURE else f"by resampling {counted(rounds, 'round')}"
    return f"{found[0]:.3f} ({what}: {found[1]:.3f} .. {found[2]:.3f})"


def _slow_ones(cells: Sequence[Cell]) -> Iterator[str]:
    """Name each cell above the bound, with the reason if it is more than noise."""
    slow = [cell for cell in cells if cell.ratio(OWN).median > TOO_SLOW_RATIO]
    if not slow:
        yield f"In no cell does bucketed take more than {TOO_SLOW_RATIO} times as long as stock DDP."
    for cell in slow:
        own, null = cell.ratio(OWN), cell.ratio(NULL)
        ratios = f"{own.median:.3f} ({ratio_interval(own)}), null control {null.median:.3f} ({ratio_interval(null)})"
        where = f"Bucketed is above {TOO_SLOW_RATIO} with {cell.label}: {ratios}"
        yield f"{where}. {_why(cell)}" if own.low > null.high else f"{where}; that is within the noise."


def _why(cell: Cell) -> str:
    """Say where the two traces differ: in exposed communication, or in host work for each parameter."""
    own, stock = cell.traced[OWN], cell.traced[DDP]
    if None in (own["exposed_ns"], stock["exposed_ns"], own["window_ns"], stock["window_ns"]):
        return "The traces do not show where communication was exposed."
    if own["window_ns"] <= stock["window_ns"]:
        windows = f"{millis(own['window_ns'])} and {millis(stock['window_ns'])} ms"
        return f"The traced steps do not show the difference ({windows})."
    exposed = own["exposed_ns"] - stock["exposed_ns"]
    rest = own["window_ns"] - stock["window_ns"] - exposed
    each = f"{duration(rest / cell.parameters)} for each of {cell.parameters} parameters"
    return f"In the traces exposed communication takes {_more(exposed)} of a step, and all else {_more(rest)}: {each}."


def _more(ns: int) -> str:
    return f"{millis(abs(ns))} ms {'less' if ns < 0 else 'more'}"


def _beside(cell: Cell, others: Sequence[str]) -> str:
    """Name the strategies that differ from stock DDP, and those that do not beyond the noise."""
    null, found = cell.ratio(NULL), {name: cell.ratio(name) for name in (*others, OWN) if name in cell.strategies}
    if null.count < ROUNDS_SURE:
        seen = ", ".join(f"{name} {ratio.median:.2f}" for name, ratio in found.items())
        rounds = counted(null.count, "round")
        return f"{rounds} of {cell.label} gave {seen} times stock DDP's step, which proves no difference."
    apart = [f"{name} {ratio.median:.2f}" for name, ratio in found.items() if _is_apart(ratio, null)]
    same = [f"{name} {ratio.median:.2f}" for name, ratio in found.items() if not _is_apart(ratio, null)]
    parts = [f"{', '.join(apart)} times stock DDP's"] if apart else []
    parts += [f"no difference beyond the noise: {', '.join(same)}"] if same else []
    return f"A step of {cell.label} takes {'; '.join(parts)}; null control {null.median:.3f} ({ratio_interval(null)})."


def _is_apart(found: Spread, null: Spread) -> bool:
    """Whether the two intervals do not overlap."""
    return found.low > null.high or found.high < null.low


def explained(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield sentences on stopwatch and trace, in the cell where stock DDP communicates for most of the step."""
    cell = max(cells, key=lambda cell: cell.comm_ratio(DDP) or 0.0)
    for strategy in cell.strategies:
        if strategy not in SENTENCES:
            continue
        if cell.comm_ratio(strategy) is None:
            where = f"{_name(strategy)} with {cell.label}"
            yield f"The trace of {where} shows no communication to compare with the stopwatch's."
        else:
            yield SENTENCES[strategy](cell, strategy)


def _issued(cell: Cell, strategy: str) -> str:
    """Explain stock DDP and our reducer: a stopwatch sees them issue, and little of what follows."""
    host, true = cell.host_ratio(strategy), cell.comm_ratio(strategy) or 0.0
    if true < FAR_RATIO * host:
        return f"{_both(cell, strategy)}; here the stopwatch misses little."
    where = "in C++, where Python has no stopwatch" if strategy == DDP else "after the timed part"
    return (
        f"{_both(cell, strategy)}. An asynchronous all-reduce returns as soon as it is queued, and {_name(strategy)} "
        f"waits for it {where}: the stopwatch's {_percent(host)} is only the issuing; the trace has the true numbers."
    )


def _waited(cell: Cell, strategy: str) -> str:
    """Explain overlap by hand: issuing and waiting."""
    true = cell.traced[strategy]
    if cell.host_comm_ns(strategy) >= true["comm_ns"]:
        return f"{_both(cell, strategy)}; here issuing and waiting took as long as all communication."
    return (
        f"{_both(cell, strategy)}. The stopwatch sees the issuing and the waits, but not the "
        f"{millis(true['hidden_ns'])} ms that backward hid."
    )


def _blocked(cell: Cell, strategy: str) -> str:
    """Explain synchronous calls: everything until the thread runs again."""
    host, true = cell.host_comm_ns(strategy), cell.traced[strategy]
    words = _both(cell, strategy)
    if host < true["comm_ns"]:
        queued = ", since a call there returns when its kernel is queued" if cell.backend == "nccl" else ""
        return f"{words}; here the stopwatch does not overstate{queued}."
    moved = true["transfer_ns"]
    part = "" if moved is None else f"; on the rank that came last, which waited for nobody, it was {millis(moved)} ms"
    return (
        f"{words}{part}. A blocking call overstates communication: its time includes the wait for slower ranks, as the "
        "backend's own time does, and the delay until the thread runs again."
    )


SENTENCES: Final[dict[str, Callable[[Cell, str], str]]] = {
    "naive": _blocked,
    "flat": _blocked,
    "overlap": _waited,
    "bucketed": _issued,
    DDP: _issued,
}


def _both(cell: Cell, strategy: str) -> str:
    """State both numbers side by side."""
    true: dict[str, Any] = cell.traced[strategy]
    comm, ratio = cell.host_comm_ns(strategy), cell.comm_ratio(strategy) or 0.0
    doubt = f" ({EVIDENCE[Evidence(true['evidence'])]})" if true["evidence"] in APPROXIMATE else ""
    return (
        f"{_name(strategy)} with {cell.label}: a stopwatch around its calls shows {millis(comm)} ms, "
        f"{_percent(cell.host_ratio(strategy))} of its step of {millis(cell.host_step_ns(strategy))} ms; in the trace "
        f"the backend communicated for {millis(true['comm_ns'])} ms, {_percent(ratio)} of its step of "
        f"{millis(true['window_ns'])} ms, {millis(true['exposed_ns'])} ms of it exposed{doubt}"
    )


def _name(strategy: str) -> str:
    return "stock DDP" if strategy == DDP else strategy


def _percent(ratio: float) -> str:
    """Return a percentage with a decimal: small ones are the point."""
    return f"{100 * ratio:.1f} %"
