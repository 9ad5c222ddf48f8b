"""Step time over bucket cap: each start of a collective costs time, and a late bucket cannot hide. A U-curve.

Cap 0 sends every gradient alone, as soon as it is ready; "all" sends all at once, when backward is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.bench import traced
from ddptrace.bench.experiment import Experiment, Measured, Section, TimedOptions, caps, only_one
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import REDUCERS
from ddptrace.bench.timing import (
    COMM_HEADS,
    ROUNDS_SURE,
    STEP_CAPTION,
    Spread,
    comm_cells,
    interleaved,
    interval_head,
    ms_interval,
    spread,
    step_lines,
)
from ddptrace.bench.workloads import Trainee, nbytes, workload
from ddptrace.render.sheet import Chart, Grid
from ddptrace.units import counted, millis, size

ONE_BUCKET: Final = "all"
CAPS_MIB: Final = {"0": 2.0**-20, ONE_BUCKET: 2.0**20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`caps_mb`: in MiB; "0" is a bucket for each parameter, "all" one bucket. `reducer`: "ddp" or "bucketed"."""

    workload: str = "convnet"
    reducer: str = "ddp"
    caps_mb: tuple[str, ...] = ("0", "0.5", "1", "2", "4", "8", "16", ONE_BUCKET)

    def __post_init__(self) -> None:
        only_one(self.ranks)
        workload(self.workload)
        _caps(self.caps_mb)


def measure(job: Job, options: Options) -> Measured:
    """Time each cap, and trace a run of each. Collective."""
    strategy, work = REDUCERS[options.reducer], workload(options.workload)
    steps = {cap: Trainee(job, work, strategy(mib)).step for cap, mib in _caps(options.caps_mb).items()}
    times = interleaved(job, steps, options.repeats)
    runs = traced.analyzed(job, {f"cap-{cap}": step for cap, step in steps.items()})
    return {
        "setup": setup_of(job),
        "nbytes": nbytes(work.make()),
        "times_ns": times,
        "traced": traced.typical_steps(runs),
    }


def _caps(asked: Sequence[str]) -> dict[str, float]:
    """Return MiB by name, ascending. Raises: DdptraceError for a text that is no cap."""
    return dict(sorted(caps(asked, CAPS_MIB).items(), key=lambda item: item[1]))


def title(options: Options, jobs: Sequence[Measured]) -> str:
    return f"Step time over bucket cap: {options.workload}, {size(jobs[0]['nbytes'])} of gradients"


def sections(options: Options, jobs: Sequence[Measured]) -> Iterator[Section]:
    (job,) = jobs
    spreads = {cap: spread(rounds) for cap, rounds in job["times_ns"].items()}
    best = min(spreads, key=lambda cap: spreads[cap].median)
    heads = ("cap MiB", "step ms", interval_head(spreads.values()), *COMM_HEADS)
    rows = tuple(_row(cap, spreads[cap], job["traced"][f"cap-{cap}"]) for cap in spreads)
    yield Section((_words(spreads, best),), (Grid("Caps", heads, rows, NOTE),), (_chart(job, spreads),))


NOTE: Final = "step: median over the rounds, untraced. comm, hidden and exposed: the typical step of a traced run."


def _row(cap: str, time: Spread, typical: dict[str, Any]) -> tuple[str, ...]:
    return cap, millis(time.median), ms_interval(time), *comm_cells(typical)


def _words(spreads: dict[str, Spread], best: str) -> str:
    """Name the best cap, and say whether the curve is a U: both of its ends above the best beyond their intervals. Few
    rounds tell no more than which median is lowest."""
    if spreads[best].count < ROUNDS_SURE:
        lowest = f"Of {counted(len(spreads), 'cap')}, {best} has the lowest median, {millis(spreads[best].median)} ms"
        return f"{lowest}; this does not prove that it is the best."
    ends = [cap for cap in (next(iter(spreads)), list(spreads)[-1]) if cap != best]
    above = (f", {spreads[cap].median / spreads[best].median:.2f} times as long at {cap}" for cap in ends)
    found = f"The best of {counted(len(spreads), 'cap')} is {best}: a step takes {millis(spreads[best].median)} ms"
    return f"{found}{''.join(above)}; {_shape(spreads, best, ends)}."


def _shape(spreads: dict[str, Spread], best: str, ends: list[str]) -> str:
    if len(spreads) < 3:
        return "fewer than three caps show no curve"
    if best in CAPS_MIB:
        return "the minimum is at an end, and no cap lies beyond it: no U-curve here"
    if len(ends) < 2:
        return "the minimum is at an end of the measured caps: one beyond it may be better"
    beyond = all(spreads[cap].low > spreads[best].high for cap in ends)
    return "a U-curve with its minimum inside" if beyond else "no clear U: its ends do not both exceed the noise"


def _chart(job: Measured, spreads: dict[str, Spread]) -> Chart:
    names = tuple(spreads)
    lines = step_lines(names, list(spreads.values()), [job["traced"][f"cap-{cap}"] for cap in names])
    return Chart("Step time over bucket cap", "cap in MiB", "ms", lines, caption=STEP_CAPTION)


EXPERIMENT: Final = Experiment("buckets", Options, measure, title, sections)
