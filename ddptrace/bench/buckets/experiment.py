"""Step time over bucket cap: every start of a collective costs, and what leaves late cannot hide. A U-curve.

Cap 0 sends every gradient alone, as soon as it is ready; "all" sends all of them at once, when backward is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ddptrace.bench.asked import caps, only_one
from ddptrace.bench.cells import COMM_HEADS, STEP_CAPTION, comm_cells, interval_head, ms_interval, step_lines
from ddptrace.bench.setup import merged, setup_of
from ddptrace.bench.statistics import ROUNDS_SURE, Spread
from ddptrace.bench.timing import Repeats, interleaved, spread
from ddptrace.bench.workloads import nbytes, workload
from ddptrace.render.sheet import Chart, Grid, Sheet
from ddptrace.render.words import counted, millis, size

if TYPE_CHECKING:
    from ddptrace.bench.job import Job

ONE_BUCKET: Final = "all"
CAPS_MIB: Final = {"0": 2.0**-20, ONE_BUCKET: 2.0**20}


@dataclass(frozen=True, slots=True)
class Options:
    """`caps_mb`: in MiB; "0" is a bucket for each parameter, "all" one bucket. `reducer`: "ddp" or "bucketed"."""

    ranks: tuple[int, ...] = (2,)
    backend: str | None = None
    workload: str = "convnet"
    reducer: str = "ddp"
    caps_mb: tuple[str, ...] = ("0", "0.5", "1", "2", "4", "8", "16", ONE_BUCKET)
    repeats: Repeats = field(default_factory=Repeats)

    def __post_init__(self) -> None:
        only_one(self.ranks)
        workload(self.workload)
        _caps(self.caps_mb)


def measure(job: Job, options: Options) -> dict[str, Any]:
    """Times by cap and round, and what a traced run of each says. Collective."""
    from ddptrace.bench import traced
    from ddptrace.bench.strategies import REDUCERS
    from ddptrace.bench.training import Trainee

    strategy, work = REDUCERS[options.reducer], workload(options.workload)
    steps = {cap: Trainee(job, work, strategy(mib)).step for cap, mib in _caps(options.caps_mb).items()}
    times = interleaved(job, steps, options.repeats)
    true = traced.truths(traced.analyzed(job, {f"cap-{cap}": step for cap, step in steps.items()}))
    return {"setup": setup_of(job), "nbytes": nbytes(work.make()), "times_ns": times, "traced": true}


def _caps(asked: Sequence[str]) -> dict[str, float]:
    """MiB by name, ascending. Raises DdptraceError for what is no cap."""
    return dict(sorted(caps(asked, CAPS_MIB).items(), key=lambda item: item[1]))


def sheet(options: Options, measured: list[dict[str, Any]]) -> Sheet:
    one = measured[0]
    spreads = {cap: spread(rounds) for cap, rounds in one["times_ns"].items()}
    best = min(spreads, key=lambda cap: spreads[cap].median)
    title = f"Step time over bucket cap: {options.workload}, {size(one['nbytes'])} of gradients"
    heads = ("cap MiB", "step ms", interval_head(spreads.values()), *COMM_HEADS)
    grid = Grid("Caps", heads, tuple(_row(cap, spreads[cap], one["traced"][f"cap-{cap}"]) for cap in spreads), NOTE)
    return Sheet("buckets", title, merged(measured), (_words(spreads, best),), (grid,), _charts(one, spreads))


NOTE: Final = "step: median over the rounds, untraced. comm, hidden and exposed: the typical step of a traced run."


def _row(cap: str, time: Spread, true: dict[str, Any]) -> tuple[str, ...]:
    return cap, millis(time.median), ms_interval(time), *comm_cells(true)


def _words(spreads: dict[str, Spread], best: str) -> str:
    """Which cap is best, and whether the curve is a U: both of its ends above the best beyond their intervals. Of few
    rounds no more than which median is lowest."""
    if spreads[best].count < ROUNDS_SURE:
        lowest = f"Of {counted(len(spreads), 'cap')} {best} has the lowest median, {millis(spreads[best].median)} ms"
        return f"{lowest}; that it is the best is not proven."
    ends = [cap for cap in (next(iter(spreads)), list(spreads)[-1]) if cap != best]
    above = (f", {spreads[cap].median / spreads[best].median:.2f} times as long at {cap}" for cap in ends)
    found = f"The best of {counted(len(spreads), 'cap')} is {best}: a step takes {millis(spreads[best].median)} ms"
    return f"{found}{''.join(above)}; {_shape(spreads, best, ends)}."


def _shape(spreads: dict[str, Spread], best: str, ends: list[str]) -> str:
    if len(spreads) < 3:
        return "fewer than three caps tell no curve"
    if best in CAPS_MIB:
        return "the minimum is at an end, which no cap lies beyond: no U-curve here"
    if len(ends) < 2:
        return "the minimum is at an end of what was measured: beyond it may be a better one"
    beyond = all(spreads[cap].low > spreads[best].high for cap in ends)
    return "a U-curve with its minimum inside" if beyond else "no clear U: its ends are not both beyond the noise"


def _charts(one: dict[str, Any], spreads: dict[str, Spread]) -> tuple[Chart, ...]:
    names = tuple(spreads)
    lines = step_lines(names, list(spreads.values()), [one["traced"][f"cap-{cap}"] for cap in names])
    return (Chart("Step time over bucket cap", "cap in MiB", "ms", lines, caption=STEP_CAPTION),)
