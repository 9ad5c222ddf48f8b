"""`ddptrace.diff`: compares two sides of runs. Joins load, analysis and the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddptrace.analyzer import AnyPath, Progress, analyze
from ddptrace.errors import DdptraceError, RunDirectoryError
from ddptrace.load.run import Inputs, open_run, runs_of, settings_of_run
from ddptrace.schema import run_path

if TYPE_CHECKING:
    from ddptrace.analysis.diff.one_run import RunFigures
    from ddptrace.analysis.diff.tables import Diff

Paths = AnyPath | Sequence[AnyPath]


def diff(before: Paths, after: Paths, *, jobs: int | None = None, progress: Progress | None = None) -> Diff:
    """Compare the runs of two sides: what changed, and how certain that is. Needs no torch.

    One run per side shows only how these two runs differ. With several runs per side, best made in alternation, the
    spread within a side shows how much varies by chance.

    Args:
        before: A run, a folder that holds several run directories, a glob, or a list of these.
        after: The same for the other side.
        jobs: Number of processes that read a run. None: one per processor, or a single one for little input.
        progress: Function to call after each run, with the number of runs done and the number of all.

    Returns:
        All changes of the typical step in nanoseconds, each with a 95 % interval.

    Raises:
        RunDirectoryError: A run cannot be read or has no step.
        DdptraceError: A run is given twice.
    """
    from ddptrace.analysis.diff.compare import compare

    sides = [_listed(before), _listed(after)]
    runs = [runs_of([run_path(path) for path in side]) for side in sides]
    read = read_figures([*runs[0], *runs[1]], jobs, progress)
    figures = [[next(read) for _ in side] for side in runs]
    _refuse_same([*figures[0], *figures[1]])
    return compare((_name(sides[0]), _name(sides[1])), *figures)


def _listed(paths: Paths) -> list[AnyPath]:
    found = list(paths) if isinstance(paths, list | tuple) else [paths]
    if not found:
        raise RunDirectoryError("nothing to compare: give a run directory, or a folder of several, for each side")
    return found  # type: ignore[return-value] # a tuple of paths is a sequence of them


def _name(paths: Sequence[AnyPath]) -> str:
    return ", ".join(map(str, paths))


def read_figures(
    runs: Sequence[Inputs], jobs: int | None = None, progress: Progress | None = None
) -> Iterator[RunFigures]:
    """Read runs one after the other, and keep of each only what is compared."""
    for done, run in enumerate(runs, start=1):
        yield _figures(run, jobs)
        if progress is not None:
            progress(done, len(runs))


def _figures(run: Inputs, jobs: int | None) -> RunFigures:
    from ddptrace.analysis.diff.one_run import figures_of

    name = _name(run)
    found = figures_of(analyze(run, jobs=jobs), name, settings_of_run(open_run(run)))
    if found is None:
        raise RunDirectoryError(f"{name} holds no step to compare: see what was recorded with `ddptrace analyze`")
    return found


def _refuse_same(runs: Sequence[RunFigures]) -> None:
    """A run that is given twice would count as two runs that agree."""
    seen: dict[str, str] = {}
    for run in runs:
        if run.run_id and run.run_id in seen:
            raise DdptraceError(
                f"{run.path} is the same run as {seen[run.run_id]} (id {run.run_id[:8]}): give each run once"
            )
        seen[run.run_id] = run.path
