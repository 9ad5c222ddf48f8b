"""What analyzing a run of many ranks costs, and whether that grows faster than the run.

Two ranks train a few steps under `ddptrace.trace`. `replicate` makes runs of 32, 64, 128 and 256 ranks from their run,
and `ddptrace analyze` reads each, compares the ranks, and writes tables, report and merged trace, each time in a new
process. A round measures all numbers of ranks, so that a machine that gets slower slows all of them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from benchmarks.processes import measured as cost_of
from benchmarks.ranks_growth import AnalysisCost, charts, grids, words
from benchmarks.ranks_replicate import called, records_nbytes, replicate
from ddptrace.bench.experiment import Experiment, JobOptions, Measured, Section, merged_setup, only_one
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import stock_ddp
from ddptrace.bench.traced import recording
from ddptrace.bench.workloads import Trainee, workload
from ddptrace.errors import DdptraceError
from ddptrace.own_module import own_module
from ddptrace.schema import ANALYSIS

CAP_MB: Final = 1
"""Of the buckets, in MiB: small, so that there are many."""

FILES: Final = {"trace": "trace.json.gz", "report": "report.html", "tables": "analysis.json"}


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
