"""The same steps under `ddptrace.trace`: what the wire and the processor did, beside what a stopwatch shows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.bench.job import Job
from ddptrace.errors import DdptraceError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from ddptrace.capture.session import Profile

LEAD_STEPS: Final = 2
"""Steps before the profiler window. The profiler's own warm-up takes one more."""


@dataclass(frozen=True, slots=True)
class TypicalStep:
    """The typical step of a traced run: means over its typical rank-steps, in ns. None: it did not communicate."""

    window_ns: int | None
    comm_ns: int | None
    hidden_ns: int | None
    exposed_ns: int | None
    overlap_ratio: float | None
    evidence: str


@contextmanager
def recording(
    run: Path, profile: Profile | None = None, tracer_provider: TracerProvider | None = None
) -> Iterator[ddptrace.trace]:
    """Trace as `ddptrace.trace` does. Raises: DdptraceError if it cannot record, for instance on a full disk."""
    with ExitStack() as entered:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "ddptrace cannot record into", RuntimeWarning)
            try:
                trace = entered.enter_context(
                    ddptrace.trace(run, profile=profile, tracer_provider=tracer_provider, overwrite=True)
                )
            except RuntimeWarning as warning:
                raise DdptraceError(str(warning)) from None
        yield trace


def record(job: Job, name: str, thing: Callable[[], None], steps: int = 6) -> Path:
    """Run a thing, one step each time, in a profiler window. Returns the run directory. Collective."""
    run = job.folder / "runs" / name
    window = torch.profiler.schedule(wait=LEAD_STEPS, warmup=1, active=steps, repeat=1)
    with recording(run, window) as trace:
        for _ in range(LEAD_STEPS + 1 + steps + 1):  # the last step ends the window
            thing()
            trace.step()
    job.meet()  # each rank writes its window's file when it leaves the trace: now all files exist
    return run


def analyzed(
    job: Job, things: Mapping[str, Callable[[], None]], called: Callable[[str], str] = str
) -> dict[str, Result]:
    """Record each thing, then analyze each run once. Returns results by the thing's name, on rank 0 alone. `called`:
    from the thing's name to the run's name. Collective."""
    runs = {name: record(job, called(name), thing) for name, thing in things.items()}
    return {name: analysis(run) for name, run in runs.items()} if job.rank == 0 else {}


def analysis(run: Path) -> Result:
    """Analyze a run that a benchmark recorded. Needs no process group. Raises: DdptraceError if records were lost."""
    result = ddptrace.analyze(run)
    for finding in result.findings:
        if finding.kind.spoils_benchmark:
            raise DdptraceError(f"the traced run {run} is incomplete ({finding.where}): {finding.message}")
    return result


def typical_steps(results: Mapping[str, Result]) -> dict[str, dict[str, Any]]:
    """Return the `TypicalStep` of each result as JSON."""
    return {name: asdict(typical_step(result)) for name, result in results.items()}


def typical_step(result: Result) -> TypicalStep:
    """Take the steps in the profiler's window alone: only these were timed."""
    profiled = [row for row in result.steps if row.profiled]
    summary = summarize(replace(result, steps=Table(StepRow, profiled)) if profiled else result)
    comm, hidden = summary.comm_ns, summary.hidden_ns
    exposed = None if comm is None or hidden is None else comm - hidden
    evidence = "" if summary.evidence is None else summary.evidence.value
    return TypicalStep(summary.window_ns, comm, hidden, exposed, summary.overlap_ratio, evidence)
