"""Many process groups at once: the time of one all-reduce in each, and why it grows with their number.

Measurements tell three causes apart: cores (the kernel's accounts of busy cores), the queue of each group's worker
threads (launch to begin in a traced run), and the wire (bytes per second of all groups together).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ddptrace.bench import traced
from ddptrace.bench.experiment import Experiment, Measured, TimedOptions
from ddptrace.bench.experiments.groups_facts import calls_of, load_of
from ddptrace.bench.experiments.groups_layout import MODES, SHAPES, Arrangement, Floor
from ddptrace.bench.experiments.groups_sheet import sections, setup, title
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.timing import interleaved
from ddptrace.errors import DdptraceError

TRACED_STEPS: Final = 4
"""Each holds `calls` all-reduces in each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`groups`: numbers of groups at once. `nbytes`: of one all-reduce. `calls`: all-reduces in each group and step.
    `threads`: numbers of threads of each Gloo group, tried with the most groups. `environments`: settings such as
    "A=1 B=2", each tried in a separate job. `environment`: the setting of this job."""

    ranks: tuple[int, ...] = (16,)
    groups: tuple[int, ...] = (1, 2, 4, 8)
    nbytes: int = 4_000_000
    calls: int = 4
    threads: tuple[int, ...] = (1, 2, 4)
    environments: tuple[str, ...] = ("OMP_NUM_THREADS=2", "GLOO_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo,lo")
    environment: str = ""

    def __post_init__(self) -> None:
        wrong = [text for text in self.environments for part in text.split() if not part.partition("=")[2]]
        if wrong:
            raise DdptraceError(
                f"{wrong[0]!r} sets no environment variable: write NAME=VALUE, and separate several by spaces"
            )


def measure(job: Job, options: Options) -> Measured:
    """Measure times, traced calls and processors of each arrangement that fits on the ranks. Collective."""
    if job.ranks < 2:
        raise DdptraceError("a group needs at least 2 ranks: start at least 2 (--ranks 2)")
    floor, asked = Floor(job, options.nbytes, options.calls), list(arrangements(options, job))
    steps = {each.name: floor.step(each) for each in asked}
    threads = {each.name: floor.threads(each) for each in asked}
    times = interleaved(job, steps, options.repeats)
    loads = {name: load_of(job, step) for name, step in steps.items()}
    runs = {name: _record(job, options, name, step) for name, step in steps.items()}
    calls = {name: calls_of(run, threads[name]) for name, run in runs.items()} if job.rank == 0 else {}
    return {
        "setup": setup_of(job),
        "environment": options.environment,
        "on_gpu": job.device.type == "cuda",
        "arrangements": [asdict(each) | {"name": each.name} for each in asked],
        "threads": threads,
        "times_ns": times,
        "loads": loads,
        "calls": calls,
    }


def _record(job: Job, options: Options, name: str, step: Callable[[], None]) -> Path:
    """Trace a run, in a folder named by its environment."""
    job.say(f"tracing {name}")
    folder = options.environment.replace("/", "_") or "as-it-is"
    return traced.record(job, f"{folder}/{name}", step, TRACED_STEPS)


def arrangements(options: Options, job: Job) -> Iterator[Arrangement]:
    """Yield all arrangements; only the most groups in a job that tries an environment. A pair needs two ranks."""
    for shape in SHAPES:
        fit = [n for n in sorted(set(options.groups)) if shape == "same" or 2 * n <= job.ranks] or [1]
        for mode in ("async",) if options.environment else MODES:
            for groups in fit[-1:] if options.environment else fit:
                yield Arrangement(shape, mode, groups)
        if job.backend == "gloo" and not options.environment:
            for threads in options.threads:
                yield Arrangement(shape, "async", fit[-1], threads)


EXPERIMENT: Final = Experiment("groups", Options, measure, title, sections, setup)
