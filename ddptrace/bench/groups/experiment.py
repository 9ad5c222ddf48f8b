"""Many process groups at once: the time of one all-reduce in each, and why it grows with their number.

Three causes are told apart by measuring, not by guessing: cores (kernel's accounts of busy cores), the queue of each
group's worker threads (launch to begin in a traced run), and the wire (bytes per second of all groups together).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ddptrace.bench.groups.sheet import sheet as sheet
from ddptrace.bench.setup import setup_of
from ddptrace.bench.timing import Repeats, interleaved
from ddptrace.errors import DdptraceError

if TYPE_CHECKING:
    from ddptrace.bench.groups.layout import Arrangement
    from ddptrace.bench.job import Job


TRACED_STEPS: Final = 4
"""Each holds `calls` all-reduces in each group."""


@dataclass(frozen=True, slots=True)
class Options:
    """`groups`: how many at once. `nbytes`: of one all-reduce; `calls`: of them in each group and step. `threads`: of
    each Gloo group, tried at the most groups. `environments`: settings, as in "A=1 B=2", each tried in a job of its
    own; `environment`: the one of this job."""

    ranks: tuple[int, ...] = (16,)
    backend: str | None = None
    groups: tuple[int, ...] = (1, 2, 4, 8)
    nbytes: int = 4_000_000
    calls: int = 4
    threads: tuple[int, ...] = (1, 2, 4)
    environments: tuple[str, ...] = ("OMP_NUM_THREADS=2", "GLOO_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo,lo")
    environment: str = ""
    repeats: Repeats = field(default_factory=Repeats)

    def __post_init__(self) -> None:
        wrong = [text for text in self.environments for part in text.split() if not part.partition("=")[2]]
        if wrong:
            raise DdptraceError(f"{wrong[0]!r} sets no environment variable: write NAME=VALUE, several with spaces")


def measure(job: Job, options: Options) -> dict[str, Any]:
    """Times, traced calls and processors of each arrangement that fits on the ranks. Collective."""
    from ddptrace.bench.groups.facts import calls_of
    from ddptrace.bench.groups.layout import Floor
    from ddptrace.bench.groups.load import load_of

    if job.ranks < 2:
        raise DdptraceError("one rank has nobody to reduce with: start at least 2 (--ranks 2)")
    floor, asked = Floor(job, options.nbytes, options.calls), list(arrangements(options, job))
    steps = {each.name: floor.step(each) for each in asked}
    threads = {each.name: floor.threads(each) for each in asked}
    times = interleaved(job, steps, options.repeats)
    loads = {name: load_of(job, step) for name, step in steps.items()}
    runs = {name: _record(job, options, name, step) for name, step in steps.items()}
    calls = {name: calls_of(run, threads[name]) for name, run in runs.items()} if job.rank == 0 else {}
    return {
        "setup": setup_of(job), "environment": options.environment, "on_gpu": job.device.type == "cuda",
        "arrangements": [asdict(each) | {"name": each.name} for each in asked], "threads": threads,
        "times_ns": times, "loads": loads, "calls": calls,
    }  # fmt: skip


def _record(job: Job, options: Options, name: str, step: Callable[[], None]) -> Path:
    """A traced run, in a folder of its environment."""
    from ddptrace.bench import traced

    job.say(f"tracing {name}")
    folder = options.environment.replace("/", "_") or "as-it-is"
    return traced.record(job, f"{folder}/{name}", step, TRACED_STEPS)


def arrangements(options: Options, job: Job) -> Iterator[Arrangement]:
    """All of them; in a job that tries an environment, only the most groups. Pairs need two ranks each."""
    from ddptrace.bench.groups.layout import MODES, SHAPES, Arrangement

    for shape in SHAPES:
        fit = [n for n in sorted(set(options.groups)) if shape == "same" or 2 * n <= job.ranks] or [1]
        for mode in ("async",) if options.environment else MODES:
            for groups in fit[-1:] if options.environment else fit:
                yield Arrangement(shape, mode, groups)
        if job.backend == "gloo" and not options.environment:
            for threads in options.threads:
                yield Arrangement(shape, "async", fit[-1], threads)
