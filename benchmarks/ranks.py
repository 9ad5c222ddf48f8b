"""What analyzing a run of many ranks costs, and whether that grows faster than the run.

Two ranks train a few steps under `ddptrace.trace`. `replicate` makes runs of 32, 64, 128 and 256 ranks from their run,
and `ddptrace analyze` reads each, compares the ranks, and writes tables, report and merged trace, each time in a new
process. A round measures all numbers of ranks, so that a machine that gets slower slows all of them.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from benchmarks.processes import measured as cost_of
from benchmarks.ranks_replicate import called, records_nbytes, replicate
from ddptrace.bench.experiment import Experiment, JobOptions, Measured, Section, merged_setup, only_one
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import stock_ddp
from ddptrace.bench.traced import recording
from ddptrace.bench.workloads import Trainee, workload
from ddptrace.errors import DdptraceError
from ddptrace.own_module import own_module
from ddptrace.render.sheet import Chart, Grid, Line
from ddptrace.schema import ANALYSIS
from ddptrace.units import NOT_MEASURED, counted, size, three_figures

CAP_MB: Final = 1
"""Of the buckets, in MiB: small, so that there are many."""

FILES: Final = {"trace": "trace.json.gz", "report": "report.html", "tables": "analysis.json"}

GROWTH_MOST: Final = 1.15
"""Largest growth of a cost beyond that of the records, for each doubling of the records."""

FEWER: Final = 4
"""Growth is judged from about a quarter of the ranks to the most."""

Part = Callable[["AnalysisCost"], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(JobOptions):
    """`to`: numbers of ranks to make from the `ranks` that are recorded. `rounds`: how often each is analyzed."""

    workload: str = "convnet"
    to: tuple[int, ...] = (32, 64, 128, 256)
    steps: int = 20
    rounds: int = 3

    def __post_init__(self) -> None:
        only_one(self.ranks)
        workload(self.workload)
        if min(self.to) <= self.ranks[0]:
            raise DdptraceError(f"{self.ranks[0]} ranks are recorded, to be made more: give larger numbers (--to)")


def measure(job: Job, options: Options) -> Measured:
    """Record, then measure bytes and costs of each number of ranks, the recorded run first. Collective; only rank 0
    analyzes."""
    job.say(f"recording {options.steps} steps of {options.workload} on {job.ranks} ranks")
    run = _recorded(job, options)
    points = _points(job, run, options) if job.rank == 0 else []
    return {"setup": setup_of(job), "points": points}


def _recorded(job: Job, options: Options) -> Path:
    run = job.folder / "runs" / "recorded"
    trainee = Trainee(job, workload(options.workload), stock_ddp(CAP_MB))
    loss = torch.zeros(1, device=job.device)
    with recording(run):
        for _ in range(options.steps):
            trainee.step()
            dist.all_reduce(loss)  # as a program that logs it does
    job.meet()
    return run


def _points(job: Job, run: Path, options: Options) -> list[dict[str, Any]]:
    runs = {job.ranks: run}
    for ranks in sorted(set(options.to)):
        job.say(f"making a run of {ranks} ranks")
        runs[ranks] = run.with_name(f"{ranks}-ranks")
        replicate(run, runs[ranks], ranks)
    costs: dict[int, dict[str, list[Any]]] = {ranks: defaultdict(list) for ranks in runs}
    for number in range(options.rounds):
        for ranks, one in runs.items():
            job.say(f"round {number + 1} of {options.rounds}: {ranks} ranks")
            cost, _ = cost_of([*own_module("ddptrace"), "analyze", str(one)], os.environ)
            for name in ("cpu_s", "wall_s", "peak_nbytes"):
                costs[ranks][name].append(getattr(cost, name))
    return [{"ranks": ranks, "nbytes": _nbytes(one, ranks), **costs[ranks]} for ranks, one in runs.items()]


def _nbytes(run: Path, ranks: int) -> dict[str, int]:
    """Return the bytes of the records and of the written files.

    Raises: DdptraceError if a collective of a rank is missing: then less was analyzed than claimed.
    """
    rows = _rows(run / ANALYSIS / FILES["tables"])
    wanted = ranks * called(run)
    if (rows["ranks"], rows["collectives"]) != (ranks, wanted):
        found = f"{rows['collectives']} collectives of {rows['ranks']} ranks"
        raise DdptraceError(
            f"{run}: {found} were analyzed instead of {wanted} of {ranks}; this is a defect of ddptrace"
        )
    written = {name: (run / ANALYSIS / file).stat().st_size for name, file in FILES.items()}
    return {"records": records_nbytes(run), **written}


def _rows(tables: Path) -> dict[str, int]:
    """Return the number of rows of some tables."""
    import msgspec

    decode, found = msgspec.json.decode, msgspec.json.decode(tables.read_bytes(), type=dict[str, msgspec.Raw])
    return {name: len(decode(found[name], type=list[msgspec.Raw])) for name in ("ranks", "collectives")}


def title(options: Options, jobs: Sequence[Measured]) -> str:
    most = jobs[0]["points"][-1]["ranks"]
    return f"Analyzing many ranks: {options.steps} steps of up to {most} ranks"


def setup(options: Options, jobs: Sequence[Measured]) -> Sequence[tuple[str, str]]:
    recorded = f"{options.steps} steps of {options.workload}, stock DDP, {CAP_MB} MiB buckets"
    return (*merged_setup(options, jobs), ("recorded", recorded), ("measured", f"{options.rounds} rounds"))


def sections(options: Options, jobs: Sequence[Measured]) -> Iterator[Section]:
    alone, *points = (AnalysisCost.of(told) for told in jobs[0]["points"])
    yield Section(words(alone, points), grids(alone, points), charts(alone, points))


EXPERIMENT: Final = Experiment("ranks", Options, measure, title, sections, setup)


@dataclass(frozen=True, slots=True)
class AnalysisCost:
    """One number of ranks. `nbytes`: of the records and of the written files, by name. `cpu_s`, `wall_s`,
    `peak_nbytes`: one for each round; a peak is None if the system does not report it."""

    ranks: int
    nbytes: Mapping[str, int]
    cpu_s: tuple[float, ...]
    wall_s: tuple[float, ...]
    peak_nbytes: tuple[int | None, ...]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> AnalysisCost:
        lists = {name: tuple(told[name]) for name in ("cpu_s", "wall_s", "peak_nbytes")}
        return cls(told["ranks"], told["nbytes"], **lists)


RECORDS: Final = "records"
PARTS: Final[dict[str, Part]] = {
    "processor time": lambda point: statistics.median(point.cpu_s),
    "peak memory": lambda point: median_peak(point),
    "trace": lambda point: point.nbytes["trace"],
    "report": lambda point: point.nbytes["report"],
    "tables": lambda point: point.nbytes["tables"],
}
"""Costs that may grow no faster than the records, by name."""


def median_peak(point: AnalysisCost) -> float | None:
    """In bytes."""
    known = [peak for peak in point.peak_nbytes if peak is not None]
    return statistics.median(known) if known else None


def growth(part: Part, alone: AnalysisCost, few: AnalysisCost, many: AnalysisCost) -> float | None:
    """Return how many times faster than the records a cost grows for each doubling of the records.

    `alone`: the recorded run. Its cost is subtracted from both, since most of it is the start of Python, or plotly in
    each report. None if it was not measured, or if few ranks cost no more than that run.
    """
    costs = [part(point) for point in (alone, few, many)]
    least, before, after = (0.0 if cost is None else cost for cost in costs)
    if None in costs or before <= least:
        return None
    records = (many.nbytes[RECORDS] - alone.nbytes[RECORDS]) / (few.nbytes[RECORDS] - alone.nbytes[RECORDS])
    beyond = max(after - least, 0.0) / (before - least) / records
    return math.pow(beyond, 1 / math.log2(records))


def judged(points: Sequence[AnalysisCost]) -> tuple[AnalysisCost, AnalysisCost] | None:
    """Return the few and the many ranks between which growth is judged; None for a single number of ranks."""
    few = next((point for point in points if point.ranks * FEWER >= points[-1].ranks), points[-1])
    return None if few is points[-1] else (few, points[-1])


COSTS: Final = (
    "One process reads all, compares the ranks, and writes tables, report and trace. cpu: user and system time, median"
    " of the rounds, in brackets their range. peak: of all processes, shared pages counted once. The first row is the"
    " recorded run. Other load on the machine affects the wall time."
)
GROWTH: Final = (
    "Growth of a cost, beyond the recorded run's, over the growth of the records, for each doubling of the records."
    " 1.00: as fast as the records; less: slower."
)


def words(alone: AnalysisCost, points: Sequence[AnalysisCost]) -> tuple[str, ...]:
    most = points[-1]
    said = (
        f"{counted(most.ranks, 'rank')} with {size(most.nbytes[RECORDS])} of records are analyzed and merged in"
        f" {three_figures(statistics.median(most.cpu_s))} s of processor time"
        f" ({three_figures(statistics.median(most.wall_s))} s wall time) and {_peak(most)} of memory; the merged trace"
        f" has {size(most.nbytes['trace'])}, the report {size(most.nbytes['report'])}."
    )
    ends = judged(points)
    return (said, "A single number of ranks shows no growth." if ends is None else _verdict(alone, *ends))


def _verdict(alone: AnalysisCost, few: AnalysisCost, many: AnalysisCost) -> str:
    grown = {name: growth(part, alone, few, many) for name, part in PARTS.items()}
    told = ", ".join(f"{name} {_times(value)}" for name, value in grown.items())
    known = [value for value in grown.values() if value is not None]
    met = "met" if known and max(known) <= GROWTH_MOST else "missed" if known else "not measured"
    between = f"From {few.ranks} to {many.ranks} ranks, for each doubling of the records"
    return f"{between}, costs grow by these multiples of the records' growth: {told}. At most {GROWTH_MOST}: {met}."


def grids(alone: AnalysisCost, points: Sequence[AnalysisCost]) -> tuple[Grid, ...]:
    heads = ("ranks", "records", "cpu s", "cpu ms a rank", "wall s", "peak", "trace", "report", "tables")
    costs = Grid("Costs", heads, tuple(_row(point) for point in (alone, *points)), COSTS)
    steps = [*pairwise(points)]
    ends = judged(points)
    judging = [ends] if ends is not None and ends not in steps else []
    spans = [*steps, *judging]
    rows = tuple(
        (name, *(_times(growth(part, alone, few, many)) for few, many in spans)) for name, part in PARTS.items()
    )
    names = tuple(f"{few.ranks} to {many.ranks}" for few, many in spans)
    return (costs, Grid("Growth", ("what", *names), rows, GROWTH)) if spans else (costs,)


def _row(point: AnalysisCost) -> tuple[str, ...]:
    a_rank = 1000 * statistics.median(point.cpu_s) / point.ranks
    files = (size(point.nbytes[name]) for name in ("trace", "report", "tables"))
    return (
        f"{point.ranks:,}",
        size(point.nbytes[RECORDS]),
        _range(point.cpu_s),
        three_figures(a_rank),
        _range(point.wall_s),
        _peak(point),
        *files,
    )


def _range(values: Sequence[float]) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{three_figures(middle)} ({three_figures(low)} .. {three_figures(high)})"


def _peak(point: AnalysisCost) -> str:
    peak = median_peak(point)
    return size(None if peak is None else round(peak))


def _times(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f}"


def charts(alone: AnalysisCost, points: Sequence[AnalysisCost]) -> tuple[Chart, ...]:
    every = (alone, *points)
    ranks = tuple(point.ranks for point in every)
    peaks = tuple(None if (peak := median_peak(point)) is None else peak / 1e6 for point in every)
    lines = tuple(
        Line(name, ranks, tuple(statistics.median(getattr(point, field)) for point in every))
        for name, field in (("processor", "cpu_s"), ("wall", "wall_s"))
    )
    return (
        Chart("Time", "ranks", "s", lines),
        Chart("Memory at its peak", "ranks", "MB", (Line("all processes", ranks, peaks),)),
    )
