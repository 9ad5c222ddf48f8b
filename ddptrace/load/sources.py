"""Finds torch.profiler traces in files and folders, and sorts them by rank."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptrace.errors import RunDirectoryError, printable
from ddptrace.findings import (
    FOLDER_UNREADABLE,
    NOT_A_TRACE,
    RANK_CLAIMED_TWICE,
    RANK_MISSING,
    RANK_UNKNOWN,
    TRACE_TWICE,
    TRACE_UNREADABLE,
    Finding,
    Severity,
)
from ddptrace.load.kineto.head import FileHead, identify
from ddptrace.load.run_folder import is_searched
from ddptrace.load.tables import MOST_RANKS

PACKED: Final = ("", ".gz", ".zst")
SUFFIXES: Final = tuple(layout + packed for layout in (".json", ".pftrace") for packed in PACKED)
"""Of two files that differ in nothing else, the one whose suffix stands first is read."""
TRIMMED: Final = ".trimmed"
"""What `ddptrace trim` puts between the name of a file and its suffix."""
LISTED: Final = 5
Heads = Mapping[Path, FileHead]


@dataclass(frozen=True, slots=True)
class TraceFile:
    """The files of one rank, in time order."""

    rank: int
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """All traces that were found, sorted by rank."""

    files: tuple[TraceFile, ...]
    findings: tuple[Finding, ...]
    world_size: int | None  # None where no file tells
    first_unix_ns: int  # begin of the first event of the first file: the run's zero


def find_traces(paths: Sequence[Path]) -> TraceFiles:
    """Find all traces. `paths`: files, and folders to search, except hidden ones and those named `analysis`.

    Raises RunDirectoryError if a path does not exist, or no file is a trace.
    """
    findings: list[Finding] = []
    heads = _traces(_without_copies(_candidates(paths, findings), findings), findings)
    if not heads:
        raise RunDirectoryError(_nothing(paths, findings))
    files = _by_rank(heads, findings)
    world_size = _world_size(heads)
    _find_missing(world_size, [file.rank for file in files], findings)
    return TraceFiles(tuple(files), tuple(findings), world_size, _first_unix_ns(files))


def _candidates(paths: Sequence[Path], findings: list[Finding]) -> list[Path]:
    """Return the files by name, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        real = _real(path)
        if real is None or not (real.is_dir() or real.is_file()):
            state = "does not exist" if real is None else "is neither a file nor a folder"
            raise RunDirectoryError(
                f"{printable(path)} {state}; give a run directory, trace files, or folders that hold them"
            )
        for file in sorted(_walk(path, findings)) if real.is_dir() else [path]:
            target = _real(file)
            if target is not None and target.is_file():  # a pipe would be waited for for ever
                found.setdefault(target, file)
    return list(found.values())


def _real(path: Path) -> Path | None:
    """Return the real path; None if there is nothing: too long a name, a link to nothing or to itself."""
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):
        return None


def _walk(folder: Path, findings: list[Finding]) -> Iterator[Path]:
    """Follow links to folders, each folder once, but no link to a folder that contains `folder`, such as `/`."""

    def refused(error: OSError) -> None:
        message = f"{printable(Path(error.filename or folder))} cannot be opened ({error.strerror}): it is left out"
        findings.append(FOLDER_UNREADABLE("run", message))

    seen: set[str] = set()
    for root, folders, files in os.walk(folder, onerror=refused, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if is_searched(name) and not _is_around(Path(root, name), folder)]
        yield from (Path(root, name) for name in files if _is_named_so(name))


def _is_around(link: Path, folder: Path) -> bool:
    return link.is_symlink() and Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(link))


def _is_named_so(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def _without_copies(files: Sequence[Path], findings: list[Finding]) -> list[Path]:
    """Return one file of each trace that is there in several forms, such as plain and packed, or whole and trimmed."""
    chosen: dict[Path, Path] = {}
    for file in sorted(files, key=_preferred):
        chosen.setdefault(file.parent / name_and_form(file.name)[0].removesuffix(TRIMMED), file)
    kept = set(chosen.values())
    copies = [file for file in files if file not in kept]
    if copies:
        names = _some([printable(file.name) for file in copies])
        message = f"these traces are here in another form, too, which is read instead: {names}"
        findings.append(TRACE_TWICE("run", message))
    return [file for file in files if file in kept]


def _preferred(file: Path) -> tuple[bool, int]:
    """Sort whole files before trimmed ones, and each by form. A file that a user names may have any other form."""
    stem, suffix = name_and_form(file.name)
    return stem.endswith(TRIMMED), SUFFIXES.index(suffix.lower()) if suffix else len(SUFFIXES)


def name_and_form(name: str) -> tuple[str, str]:
    """Return a file's name in two parts, the second of which is one of `SUFFIXES`, or empty."""
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
    stem = name[: len(name) - len(suffix)]
    return stem, name[len(stem) :]


def _traces(files: Iterable[Path], findings: list[Finding]) -> dict[Path, FileHead]:
    heads: dict[Path, FileHead] = {}
    others: list[str] = []
    for file in files:
        try:
            head = identify(file)
        except RunDirectoryError as error:
            findings.append(TRACE_UNREADABLE(printable(file.name), printable(str(error))))
            continue
        if head.is_trace:
            heads[file] = head
        else:
            others.append(f"{printable(file.name)} is {head.what}")
    if others:
        message = f"these files are no Kineto traces and are left out: {_some(others)}"
        findings.append(NOT_A_TRACE("run", message))
    return heads


def _nothing(paths: Sequence[Path], findings: Sequence[Finding]) -> str:
    where = ", ".join(printable(path) for path in paths[:LISTED]) or "nothing"
    why = "; ".join(finding.message for finding in findings[:LISTED]) or f"no {', '.join(SUFFIXES)} files"
    return (
        f"{where} holds no run of ddptrace.trace and no trace of torch.profiler ({why}); give a run directory, or the"
        " files that export_chrome_trace wrote"
    )


def _by_rank(heads: Heads, findings: list[Finding]) -> list[TraceFile]:
    """Assign ranks from the files, else from their names, else the next free number."""
    files: dict[int, tuple[Path, ...]] = {}
    unknown: list[Path] = []
    claims: dict[int, list[Path]] = defaultdict(list)
    for path, head in heads.items():
        said = head.facts.rank if head.facts.rank is not None else rank_in_name(path)
        (unknown if said is None or said > MOST_RANKS else claims[said]).append(path)
    twice: list[Path] = []
    for rank, paths in claims.items():
        files[rank] = _windows(paths)
        twice += [path for path in paths if path not in files[rank]]
    for path in twice:
        files[_place(files, rank_in_name(path))] = (path,)
    for path in unknown:
        files[_place(files, None)] = (path,)
    _find_unplaced(files, unknown, twice, findings)
    return [TraceFile(rank, paths) for rank, paths in sorted(files.items())]


def _windows(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files of a rank that can be windows of one process, named alike and one after the other, by time."""
    if len(paths) == 1:
        return tuple(paths)
    begins: dict[int, Path] = {}
    for path in paths:
        is_like = same_but_for_digits(path, paths[0]) and rank_in_name(path) == rank_in_name(paths[0])
        begin = identify(path, with_time=True).first_unix_ns if is_like else None
        if begin is not None:
            begins.setdefault(begin, path)
    return tuple(begins[begin] for begin in sorted(begins)) if paths[0] in begins.values() else (paths[0],)


def _place(files: Mapping[int, object], wanted: int | None) -> int:
    """Return the wanted number if it is free, else the lowest free number."""
    if wanted is not None and wanted not in files:
        return wanted
    return next(number for number in range(len(files) + 1) if number not in files)


def _find_unplaced(
    files: Mapping[int, tuple[Path, ...]], unknown: Sequence[Path], twice: Sequence[Path], findings: list[Finding]
) -> None:
    number = {path: rank for rank, paths in files.items() for path in paths}
    for kind, paths, why in (
        (RANK_UNKNOWN, unknown, "neither their contents nor their names give a rank"),
        (RANK_CLAIMED_TWICE, twice, "another file has the same rank"),
    ):
        if paths and len(number) == 1:
            alone = f"{printable(paths[0].name)} is shown as rank {number[paths[0]]}, because nothing in it or its name"
            findings.append(kind("run", f"{alone} gives a rank"))
        elif paths:
            listed = _some([f"{printable(path.name)} as {number[path]}" for path in paths])
            shown = f"these files are shown as additional ranks, because {why}: {listed}"
            message = f"{shown}; name them rank-0.json, rank-1.json, …"
            findings.append(kind("run", message))


def _world_size(heads: Heads) -> int | None:
    said = (head.facts.world_size for head in heads.values())
    return max((size for size in said if size is not None and 0 < size <= MOST_RANKS), default=None)


def _find_missing(world_size: int | None, ranks: Sequence[int], findings: list[Finding]) -> None:
    """Report ranks without a trace: of a large job, often only a few ranks are traced."""
    missing = sorted(set(range(world_size or 0)) - set(ranks))
    if missing:
        severity: Severity = "info" if len(ranks) < len(missing) else "warning"
        listed = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        message = f"{len(missing)} of {world_size} ranks have no trace here ({listed}); add their files to see them"
        findings.append(RANK_MISSING("run", message, severity))


def _first_unix_ns(files: Sequence[TraceFile]) -> int:
    """Return the first time in the files; 0 if none has one."""
    begins = (identify(file.paths[0], with_time=True).first_unix_ns for file in files)
    return next((begin for begin in begins if begin is not None), 0)


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:LISTED]) + (f" and {len(texts) - LISTED} more" if len(texts) > LISTED else "")


# What a file's name says about its rank -------------------------------------------------------------------------------


MOST_DIGITS: Final = 6  # a longer number is a time or a job's id
NUMBER: Final = rf"(\d{{1,{MOST_DIGITS}}})(?!\d)"
IN_NAME: Final = tuple(
    re.compile(pattern + NUMBER, re.IGNORECASE)
    for pattern in (r"(?<![a-z])rank[-_ =:]?", r"(?<![a-z])worker[-_ =:]?", r"(?:^|[-_ .])r(?=\d{1,6}(?:$|[-_ .]))")
)
"""rank-70.Mar…, rank_0, trace_8_rank_1, "run rank 3 step 5"; worker3_step…; trace_r3.json. First come, first taken."""


def rank_in_name(path: Path) -> int | None:
    """Return the rank from the file's name, else from its folder's (rank3/trace.json); None if neither has it."""
    for text in (path.name, path.parent.name):
        for pattern in IN_NAME:
            found = pattern.search(text)
            if found is not None:
                return int(found[1])
    return None


def same_but_for_digits(one: Path, other: Path) -> bool:
    """Whether one process gives such names to one window after another."""
    return re.sub(r"\d+", "0", one.name) == re.sub(r"\d+", "0", other.name)
