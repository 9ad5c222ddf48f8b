"""What a benchmark is: its options, what every rank measures, and the sheet that rank 0 makes of it.

    options ──▶ measure, on every rank of a job ──▶ JSON ──▶ sections: sentences, tables, charts ──▶ one sheet
                one job for each number of ranks

An experiment NAME is `EXPERIMENT` in `experiments/NAME.py`. `conduct` runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Chart, Grid, Sheet

if TYPE_CHECKING:
    from ddptrace.bench.job import Job

Measured = dict[str, Any]
"""What rank 0 of one job measured, as JSON. "setup": what it was measured on, see `job.setup_of`."""
NO_NAMES: Final[Mapping[str, float]] = {}


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often a thing is measured: in each of `rounds` it runs `warmup` times untimed, then `steps` times timed."""

    rounds: int = 7
    steps: int = 4
    warmup: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of every benchmark that starts ranks. `ranks`: one job for each. `backend`: None chooses by device."""

    ranks: tuple[int, ...] = (2,)
    backend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOptions(JobOptions):
    """Options of every benchmark that times things in rounds. Experiments add fields, all of them JSON."""

    repeats: Repeats = Repeats()


Options = TypeVar("Options", bound=JobOptions)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the sheet: sentences, the tables they rest on, and charts."""

    words: Sequence[str]
    grids: Sequence[Grid]
    charts: Sequence[Chart] = ()


def merged_setup(options: JobOptions, jobs: Sequence[Measured]) -> Sequence[tuple[str, str]]:
    """Return the jobs' setups as (what, value): once what is equal in all jobs, else all values."""
    names = dict.fromkeys(name for job in jobs for name in job["setup"])
    return tuple((name, "; ".join(dict.fromkeys(job["setup"][name] for job in jobs))) for name in names)


@dataclass(frozen=True, slots=True)
class Experiment(Generic[Options]):
    """A benchmark that starts ranks.

    `name`: of its files.
    `options`: the dataclass of its options. It raises DdptraceError for options that make no sense.
    `measure`: runs on every rank, collectively. The answer of rank 0 counts.
    `title`: of the sheet.
    `sections`: from what all jobs measured to the parts of the sheet.
    `setup`: what it was measured on and with, as (what, value).
    """

    name: str
    options: type[Options]
    measure: Callable[[Job, Options], Measured]
    title: Callable[[Options, Sequence[Measured]], str]
    sections: Callable[[Options, Sequence[Measured]], Iterable[Section]]
    setup: Callable[[Options, Sequence[Measured]], Sequence[tuple[str, str]]] = merged_setup

    def sheet(self, options: Options, jobs: Sequence[Measured]) -> Sheet:
        """Return the one sheet of all jobs."""
        sections = list(self.sections(options, jobs))
        return Sheet(
            self.name,
            self.title(options, jobs),
            tuple(self.setup(options, jobs)),
            tuple(sentence for section in sections for sentence in section.words),
            tuple(grid for section in sections for grid in section.grids),
            tuple(chart for section in sections for chart in section.charts),
        )


def each_job(
    section: Callable[[Options, Measured], Section],
) -> Callable[[Options, Sequence[Measured]], Iterable[Section]]:
    """Return `sections` for an experiment whose jobs are not compared: one section for each job."""
    return lambda options, jobs: (section(options, job) for job in jobs)


def known(kind: str, asked: Iterable[str], names: Collection[str]) -> None:
    """Raise DdptraceError for the first of `asked` that is not among `names`."""
    unknown = next((name for name in asked if name not in names), None)
    if unknown is not None:
        raise DdptraceError(f"no {kind} is called {unknown!r}; choose from: {', '.join(names)}")


def only_one(ranks: Sequence[int]) -> None:
    """Raise DdptraceError for several numbers of ranks, in a benchmark that compares other things."""
    if len(ranks) > 1:
        raise DdptraceError(
            f"this benchmark takes one number of ranks, and several are given ({', '.join(map(str, ranks))}): "
            "run it once for each"
        )


def caps(asked: Sequence[str], named: Mapping[str, float] = NO_NAMES) -> dict[str, float]:
    """Return bucket caps in MiB, by the text that the user typed. `named`: caps that have a name.

    Raises: DdptraceError for a text that is no cap.
    """
    found = {cap: named[cap] if cap in named else _number(cap) for cap in asked}
    if not found or not all(0 < mib < math.inf for mib in found.values()):
        names = f", {' or '.join(named)}" if named else ""
        raise DdptraceError(
            f"a cap is a number of MiB above 0{names}, and not all of {', '.join(asked)} are caps: try 1,5,25"
        )
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
