"""All profiler files of a folder, shortened to the same steps on every rank, by the step numbers that ddptrace
recorded."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from ddptrace.analyzer import Progress, analyze
from ddptrace.errors import DdptraceError, RunDirectoryError, printable
from ddptrace.findings import TRACE_DAMAGED, TRACE_UNREADABLE, Finding
from ddptrace.load.foreign.rank import load_traces
from ddptrace.load.kineto.source import NotATrace
from ddptrace.load.records.rank_run import Recorded
from ddptrace.load.run_folder import is_run, open_folder, read_rank
from ddptrace.load.sources import TRIMMED, TraceFiles, find_traces, name_and_form
from ddptrace.load.tables import RankRun, StepMark
from ddptrace.trim.shorter import Cut, cut_of, shorten
from ddptrace.units import named

PACKED_JSON: Final = ".json.gz"
DAMAGE: Final = (TRACE_DAMAGED.code, TRACE_UNREADABLE.code)


@dataclass(frozen=True, slots=True)
class TrimmedFile:
    """One file that was written. Counts are of events."""

    rank: int
    source: Path
    place: Path
    seen: int
    kept: int
    source_nbytes: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What was written, and what was left out."""

    place: Path
    asked: tuple[int, int]  # the first and the last step, as they were asked for
    steps: tuple[int, ...]  # those that the files hold now, one more before the first among them
    numbered: bool  # the files themselves number their steps
    files: tuple[TrimmedFile, ...]
    others: tuple[Path, ...]  # files that hold none of these steps
    ranks_without: tuple[int, ...]
    findings: tuple[Finding, ...]
    records: bool  # the folder is a run of ddptrace, whose records stay behind


def trim(path: Path, first: int, last: int, output: Path | None = None, progress: Progress | None = None) -> Trimmed:
    """Write the steps from `first` to `last` of one file, or of each file of a folder, to new files.

    Args:
        path: A profiler file, a folder of them, or a run directory.
        first: The first step, as `ddptrace analyze` numbers them.
        last: The last step.
        output: The file or folder to write. None: beside `path`, under its name with "trimmed" in it.
        progress: Function to call after each rank, with the number of ranks done and the number of all.

    Raises:
        RunDirectoryError: There is no trace, or none holds these steps.
        DdptraceError: The output exists.
    """
    traces = find_traces([path])
    place = output or _beside(path)
    if place.exists() or place.is_symlink():
        raise DdptraceError(f"{place} exists: remove it, or name another place with --output")
    is_recorded = path.is_dir() and is_run(path)
    recorded = RecordedSteps.of(path) if is_recorded else RecordedSteps()
    steps, cuts, damage = _cuts(traces, recorded, first, last, progress)
    if not cuts:
        asked = f"step {first}" if first == last else f"step from {first} to {last}"
        raise RunDirectoryError(f"{path} has no {asked}: {_what_instead(steps)}")
    written: list[TrimmedFile] = []
    others: list[Path] = []
    for file in traces.files:
        for source in file.paths:
            cut = cuts.get(file.rank)
            one = None if cut is None else _shorten(source, _place(source, path, place), file.rank, cut)
            if one is None:
                others.append(source)
            else:
                written.append(one)
    longest = max(cuts.values(), key=lambda cut: len(cut.steps))
    without = tuple(file.rank for file in traces.files if file.rank not in cuts)
    files, rest = tuple(written), tuple(others)
    told = damage if is_recorded else (*traces.findings, *damage)  # the other files of a run directory are no traces
    return Trimmed(place, (first, last), longest.steps, longest.numbered, files, rest, without, told, is_recorded)


def step_of_bucket(path: Path, bucket: int, progress: Progress | None = None) -> int:
    """Return the step in which the communication of a bucket was exposed for longest, on any rank.

    Raises RunDirectoryError if no step has this bucket.
    """
    buckets = analyze(find_files(path), progress=progress).buckets
    rows = [row for row in buckets if row.index == bucket and row.step is not None]
    if not rows:
        known = sorted({row.index for row in buckets})
        has = f"its buckets are {known[0]} to {known[-1]}" if known else "it shows no gradient buckets"
        raise RunDirectoryError(f"{path} has no bucket {bucket} in a step: {has}")
    chosen = max(rows, key=lambda row: (row.exposed_ns or 0, row.comm_ns or 0))
    assert chosen.step is not None
    return chosen.step


def find_files(path: Path) -> list[Path]:
    """Return all profiler files below a path, those of a run directory of ddptrace, too."""
    return [one for file in find_traces([path]).files for one in file.paths]


def _beside(path: Path) -> Path:
    """Return `trace.trimmed.json.gz` beside a file, `traces.trimmed` beside a folder."""
    real = path.absolute() if path.name else path.resolve()
    if path.is_dir():
        return real.with_name(f"{real.name}{TRIMMED}")
    stem, suffix = _written_as(real.name)
    return real.with_name(f"{stem}{TRIMMED}{suffix}")


def _place(source: Path, path: Path, place: Path) -> Path:
    if not path.is_dir():
        return place
    return place / source.relative_to(path).with_name("".join(_written_as(source.name)))


def _written_as(name: str) -> tuple[str, str]:
    """Return a file's name in two parts, the second for the form that it is written in."""
    stem, suffix = name_and_form(name)
    return stem, suffix if suffix.lower() in (".json", PACKED_JSON) else PACKED_JSON


def _cuts(
    traces: TraceFiles, recorded: RecordedSteps, first: int, last: int, progress: Progress | None
) -> tuple[list[int], dict[int, Cut], tuple[Finding, ...]]:
    """Return all steps that any rank has, what each rank keeps, and which files are damaged."""
    steps: set[int] = set()
    cuts: dict[int, Cut] = {}
    damage: list[Finding] = []
    for done, file in enumerate(traces.files, start=1):
        loaded = load_traces(file, zero_unix_ns=traces.first_unix_ns)
        run = recorded.numbered(loaded.run, traces.first_unix_ns)
        steps |= {step.ordinal for step in run.steps}
        damage += [finding for finding in loaded.findings if finding.code in DAMAGE]
        cut = cut_of(run, first, last, traces.first_unix_ns)
        if cut is not None:
            cuts[file.rank] = cut
        if progress is not None:
            progress(done, len(traces.files))
    return sorted(steps), cuts, tuple(damage)


def _what_instead(steps: list[int]) -> str:
    return f"it has {named('step', steps)}" if steps else "nothing in it marks steps"


def _shorten(source: Path, place: Path, rank: int, cut: Cut) -> TrimmedFile | None:
    """Return None for a file that holds no slice of these steps."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = shorten(source, place, cut)
    except NotATrace as error:
        raise RunDirectoryError(f"{printable(source)} cannot be trimmed ({error}); leave it out") from error
    if done.is_empty:
        place.unlink()
        return None
    return TrimmedFile(rank, source, place, done.seen, done.kept, source.stat().st_size, done.nbytes)


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """By rank, what ddptrace recorded; nothing of files without a run."""

    ranks: Mapping[int, Recorded] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Path) -> RecordedSteps:
        """Read the records of all ranks. Raises RunDirectoryError where they cannot be read."""
        return cls({rank.rank: read_rank(rank, []) for rank in open_folder(run).ranks})

    def numbered(self, run: RankRun, zero_unix_ns: int) -> RankRun:
        """Give the steps of a rank's profiler files the numbers of the recorded steps that they lie in. Those that lie
        in none are left out."""
        recorded = self.ranks.get(run.rank)
        if recorded is None:
            return run
        middles = np.array([(step.begin_at_ns + step.end_at_ns) // 2 for step in run.steps], np.int64)
        at = recorded.clock.from_unix(middles + zero_unix_ns).tolist()
        found = (_around(recorded.run.steps, middle) for middle in at)
        pairs = zip(run.steps, found, strict=True)
        return replace(
            run, steps=tuple(replace(step, ordinal=mark.ordinal) for step, mark in pairs if mark is not None)
        )


def _around(steps: tuple[StepMark, ...], at_ns: int) -> StepMark | None:
    k = bisect.bisect_right(steps, at_ns, key=lambda step: step.begin_at_ns) - 1
    return steps[k] if k >= 0 and at_ns < steps[k].end_at_ns else None
