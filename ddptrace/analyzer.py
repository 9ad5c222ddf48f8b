"""`ddptrace.analyze`: reads a run into tables. Joins load, analysis and the engine."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ddptrace.analysis.device.rows import DeviceRow, device_row
from ddptrace.engine import cores, run_each
from ddptrace.errors import RunDirectoryError
from ddptrace.findings import Finding
from ddptrace.load.run import Plan, RankSource, Reading, load_device, load_rank, open_run, settle, told_by_nccl
from ddptrace.schema import run_path

if TYPE_CHECKING:
    from ddptrace.analysis.rank_tables import RankTables
    from ddptrace.analysis.result import Result
    from ddptrace.load.windows.comm_kernels import CommRule

AnyPath = str | os.PathLike[str]
Progress = Callable[[int, int], None]
"""Called with the number of ranks done and the number of all."""

Answer = TypeVar("Answer")

PARALLEL_MIN_NBYTES: Final = 30_000_000
"""From this size of packed input on, several processes are worth their start."""
READ_ALONE: Final = 4
"""So many times as much where files are only read: that takes a quarter of the time of analyzing them, and starting
processes takes as long as ever."""


@dataclass(frozen=True, slots=True)
class AnalyzedRank:
    """One rank, as a worker returns it."""

    tables: RankTables
    findings: tuple[Finding, ...]
    said_world_size: int | None


def analyze(
    path: AnyPath | Sequence[AnyPath],
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    cache: AnyPath | None = None,
    comm_kernels: Sequence[str] = (),
    progress: Progress | None = None,
    align: bool = True,
) -> Result:
    """Read a run of ddptrace.trace, or traces of torch.profiler, into tables. Needs no torch.

    Args:
        path: One run directory, or any number of files, folders and globs of torch.profiler traces.
        jobs: Number of processes. None: one per processor, or a single one for little input.
        scheduler: Address of a Dask scheduler to use instead. Its workers must see the same files under the same paths.
        cache: Folder for converted profiler files, which are faster to read the next time.
        comm_kernels: Further kernels to count as communication, each as "REGEX" of the name or "REGEX=op".
        progress: Function to call after each rank, with the number of ranks done and the number of all.
        align: Align the clocks of the ranks. False: leave times as each rank recorded them.

    Returns:
        The run's tables and findings.

    Raises:
        RunDirectoryError: There is nothing to analyze, or the run has another major schema version.
        DdptraceError: An argument is wrong, or a worker process failed.
    """
    plan = plan_of(path, cache, comm_kernels)
    return combined(plan, each_rank(analyzed_rank, plan, jobs, scheduler, progress), align=align)


def rank_populations(
    path: AnyPath | Sequence[AnyPath],
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    cache: AnyPath | None = None,
    comm_kernels: Sequence[str] = (),
    progress: Progress | None = None,
) -> Iterator[DeviceRow]:
    """Read only what each rank's device did, one rank after another, so that memory does not grow with their number.

    Arguments and errors are those of `analyze`. A file that cannot be read is an error, too, as there are no findings.
    """
    plan = plan_of(path, cache, comm_kernels)
    jobs = _jobs(plan, READ_ALONE * PARALLEL_MIN_NBYTES) if jobs is None else jobs
    return each_rank(_populated, plan, jobs, scheduler, progress)


def combined(plan: Plan, ranks: Iterable[AnalyzedRank], *, align: bool) -> Result:
    """Put the analyzed ranks of a plan together. `align`: as in `analyze`."""
    from ddptrace.analysis.analyze import RunHead, combine
    from ddptrace.analysis.run_view import taken_from

    tables: list[RankTables] = []
    world_size, findings = settle(plan, _without_tables(ranks, tables))
    nccl, found = told_by_nccl(plan.path)
    about = plan.schema, plan.run_id, plan.zero_unix_ns
    head = RunHead(*about, world_size, (*findings, *found), plan.manifest, nccl)
    with uncollected():
        return combine(head, taken_from(tables), align=align)


def _without_tables(ranks: Iterable[AnalyzedRank], tables: list[RankTables]) -> Iterator[AnalyzedRank]:
    """Yield the ranks, and put their tables into the list, where `combine` lets them go as it moves them."""
    for rank in ranks:
        tables.append(rank.tables)
        yield rank


def analyzed_rank(source: RankSource) -> AnalyzedRank:
    """Read and analyze one rank."""
    from ddptrace.analysis.analyze import analyze_rank

    with uncollected():
        loaded = load_rank(source)
        return AnalyzedRank(analyze_rank(loaded.run), loaded.findings, loaded.said_world_size)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off: it would scan millions of new rows again and again, and rows hold no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _populated(source: RankSource) -> DeviceRow:
    with uncollected():
        return device_row(source.what.rank, load_device(source))


def plan_of(path: AnyPath | Sequence[AnyPath], cache: AnyPath | None, comm_kernels: Sequence[str]) -> Plan:
    """Look at what there is to read. Arguments and errors are those of `analyze`."""
    several = list(path) if isinstance(path, list | tuple) else [path]
    if not several:
        raise RunDirectoryError("nothing to analyze: give a run directory or profiler traces")
    rules = _rules(comm_kernels) if comm_kernels else ()
    return open_run([run_path(one) for one in several], Reading(None if cache is None else Path(cache), rules))


def _rules(comm_kernels: Sequence[str]) -> tuple[CommRule, ...]:
    from ddptrace.load.windows.comm_kernels import parse_rule

    return tuple(map(parse_rule, comm_kernels))


def each_rank(
    function: Callable[[RankSource], Answer],
    plan: Plan,
    jobs: int | None,
    scheduler: str | None,
    progress: Progress | None,
) -> Iterator[Answer]:
    """Yield what `function` makes of each rank of a plan, in order. Other arguments are those of `analyze`."""
    answers = run_each(function, plan.sources, jobs=_jobs(plan) if jobs is None else jobs, scheduler=scheduler)
    return answers if progress is None else _told(answers, len(plan.sources), progress)


def _jobs(plan: Plan, least_nbytes: int = PARALLEL_MIN_NBYTES) -> int:
    return cores() if sum(source.nbytes for source in plan.sources) >= least_nbytes else 1


def _told(answers: Iterable[Answer], count: int, progress: Progress) -> Iterator[Answer]:
    for done, answer in enumerate(answers, start=1):
        yield answer
        progress(done, count)
