"""The same steps under `ddptrace.trace`: what the wire and the processor really did, beside what a stopwatch says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

import ddptrace
from ddptrace.bench.job import Job

LEAD_STEPS: Final = 2
"""Before the window, and one more for the profiler's own warm-up."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The typical step of a traced run: means over its typical rank-steps, in ns. None: it did not communicate."""

    window_ns: int | None
    comm_ns: int | None
    hidden_ns: int | None
    exposed_ns: int | None
    overlap_ratio: float | None
    evidence: str


def record(job: Job, name: str, thing: Callable[[], None], steps: int = 6) -> Path:
    """Run a thing (one step each) in a profiler window; the run directory. Collective."""
    run = job.folder / "runs" / name
    window = torch.profiler.schedule(wait=LEAD_STEPS, warmup=1, active=steps, repeat=1)
    with ddptrace.trace(run, profile=window, overwrite=True) as trace:
        for _ in range(LEAD_STEPS + 1 + steps + 1):  # the last one ends the window
            thing()
            trace.step()
    job.meet()  # a window's file is written when its rank leaves the trace: all of them are there now
    return run


def of_each(job: Job, things: Mapping[str, Callable[[], None]], steps: int = 6) -> dict[str, dict[str, Any]]:
    """Record each thing into `runs/NAME` and say what is true of it, as JSON, by name; empty but on rank 0."""
    runs = {name: record(job, name, thing, steps) for name, thing in things.items()}
    return {name: asdict(truth(run)) for name, run in runs.items()} if job.rank == 0 else {}


def truth(run: Path) -> Truth:
    """Needs no process group: what was recorded says it all."""
    from ddptrace.analysis.summary import summarize

    summary = summarize(ddptrace.analyze(run))
    comm, hidden = summary.comm_ns, summary.hidden_ns
    exposed = None if comm is None or hidden is None else comm - hidden
    evidence = "" if summary.evidence is None else summary.evidence.value
    return Truth(summary.window_ns, comm, hidden, exposed, summary.overlap_ratio, evidence)
