"""A run directory as ddptrace.trace wrote it: manifest, attempts, and the folder of each rank."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ddptrace.errors import RunDirectoryError
from ddptrace.findings import (
    NEWER_SCHEMA,
    NO_MANIFEST,
    OTHER_RANK,
    OTHER_RUN,
    RANK_EMPTY,
    RANK_MISSING,
    RANK_UNKNOWN,
    RESTARTED,
    Finding,
)
from ddptrace.load.records.rank_events import BESIDE, FAR_NS, Clock
from ddptrace.load.records.rank_run import Recorded, rank_run
from ddptrace.load.tables import MOST_RANKS, Group, RankRun, Recording
from ddptrace.record import RecordReader, Records
from ddptrace.record.directory import PENDING, read_json
from ddptrace.schema import ANALYSIS, MANIFEST, META, SCHEMA_VERSION, Kind

FIRST_ATTEMPT = "attempt-0"
LISTED = 3
LONGEST_VERSION = 20  # signs of it that are looked at: of a damaged file it may be anything


@dataclass(frozen=True, slots=True)
class RecordedRank:
    """A rank's folder in a run directory."""

    rank: int
    folder: Path
    manifest: dict[str, Any]
    zero_unix_ns: int
    device_ranks: tuple[int, ...] = ()  # as in `RankRun`


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run directory, or one attempt of it, before any rank is read."""

    manifest: dict[str, Any]
    zero_unix_ns: int
    world_size: int | None  # None: as the ranks say
    ranks: tuple[RecordedRank, ...]
    findings: tuple[Finding, ...]


def is_run(path: Path) -> bool:
    """Whether ddptrace.trace wrote it, or part of it."""
    patterns = (MANIFEST, "rank-*/records-*.bin", "attempt-*/rank-*", f"rank-*/{META}", f"{PENDING}*")
    return any(next(path.glob(pattern), None) is not None for pattern in patterns)


def is_searched(folder: str) -> bool:
    """Whether, by its name, a folder may hold files of the user."""
    return folder != ANALYSIS and not folder.startswith(".")


def open_folder(path: Path) -> RunFolder:
    """Read the folder. Raises RunDirectoryError if it holds no run, or a run of another major schema version."""
    root, findings = _chosen_attempt(path)
    manifest = _read_manifest(root, findings)
    folders = _rank_folders(root, findings)
    if not folders:
        raise RunDirectoryError(f"{path} holds no run (no rank-* folder); was it recorded by ddptrace.trace?")
    zero = _zero(manifest, folders[min(folders)])
    sharing = _sharing(folders, manifest)
    ranks = tuple(
        RecordedRank(rank, folder, manifest, zero, sharing.get(rank, ())) for rank, folder in sorted(folders.items())
    )
    return RunFolder(manifest, zero, _said_world_size(manifest), ranks, tuple(findings))


def _sharing(folders: Mapping[int, Path], manifest: Mapping[str, Any]) -> dict[int, tuple[int, ...]]:
    """Return the ranks that compute on one device, for each rank that is not alone on its device."""
    by_device: defaultdict[str, list[int]] = defaultdict(list)
    for rank, folder in sorted(folders.items()):
        meta = read_json(folder / META) or {}
        device = meta.get("device_uuid")
        if isinstance(device, str) and not is_of_another_run(meta, manifest):
            by_device[device].append(rank)
    return {rank: tuple(ranks) for ranks in by_device.values() if len(ranks) > 1 for rank in ranks}


def check_version(version: object, where: Path) -> str | None:
    """Return a sentence about a newer minor version, else None. Raises RunDirectoryError for another major version."""
    said = str(version)[:LONGEST_VERSION]
    major, _, minor = said.partition(".")
    ours_major, _, ours_minor = SCHEMA_VERSION.partition(".")
    if major != ours_major:
        raise RunDirectoryError(
            f"{where} was written in schema version {said}, and this ddptrace reads {ours_major}.x; "
            "analyze it with the ddptrace that recorded it"
        )
    if minor.isdecimal() and int(minor) > int(ours_minor):
        return f"written in schema version {said}, newer than {SCHEMA_VERSION}: what is unknown here is ignored"
    return None


def _chosen_attempt(path: Path) -> tuple[Path, list[Finding]]:
    """Return the newest attempt that came to a step, else the newest. The first attempt lies in `path` itself."""
    if names_first_attempt(path):
        return path.parent, []
    attempts = _attempts(path)
    if not attempts.keys() - {0}:
        return path, []
    newest = sorted(attempts, reverse=True)
    chosen = next((number for number in newest if _has_steps(attempts[number])), newest[0])
    return attempts[chosen], [RESTARTED(str(path), _other_attempts(path, chosen, newest))]


def _attempts(path: Path) -> dict[int, Path]:
    """Return the attempts by number; the first only if it left something."""
    below = [p for p in path.glob("attempt-*") if p.is_dir() and p.name.removeprefix("attempt-").isdecimal()]
    found = {0: path} if next(path.glob("rank-*"), None) is not None else {}
    return found | {int(p.name.removeprefix("attempt-")): p for p in below}


def _has_steps(attempt: Path) -> bool:
    """Whether any rank came to a step: the first rank may be the one that failed."""
    try:
        folders = sorted(_rank_folders(attempt, []).values())
        return any((RecordReader(folder).read().events["kind"] == Kind.STEP).any() for folder in folders)
    except OSError:
        return False


def _other_attempts(path: Path, chosen: int, numbers: list[int]) -> str:
    others = sorted(set(numbers) - {chosen})
    later = "" if chosen == max(numbers) else ", the last one that came to a step"
    named = ", ".join(str(path / f"attempt-{number}") for number in others[:LISTED]) + " …" * (len(others) > LISTED)
    shown = f"the job was restarted: this is attempt {chosen}{later}"
    return f"{shown}; analyze {named} for the others" if others else shown


def names_first_attempt(path: Path) -> bool:
    """Whether `path` is `attempt-0` of a run: records from before any restart lie in the run itself."""
    return path.name == FIRST_ATTEMPT and not path.exists() and is_run(path.parent)


def _read_manifest(root: Path, findings: list[Finding]) -> dict[str, Any]:
    manifest = read_json(root / MANIFEST)
    if manifest is None:
        state = "cannot be read" if (root / MANIFEST).exists() else "is missing"
        message = f"{MANIFEST} {state}: the number of ranks and the time origin are taken from the ranks' records"
        findings.append(NO_MANIFEST(MANIFEST, message))
        return {}
    newer = check_version(manifest.get("schema", SCHEMA_VERSION), root / MANIFEST)
    if newer is not None:
        findings.append(NEWER_SCHEMA(MANIFEST, newer))
    return manifest


def rank_of(folder: Path) -> int | None:
    """Return the number in the name of a rank's folder; None if it has none, or a number that no job has."""
    number = folder.name.removeprefix("rank-")
    return int(number) if number.isdecimal() and int(number) < MOST_RANKS else None


def _rank_folders(root: Path, findings: list[Finding]) -> dict[int, Path]:
    found = {p: rank_of(p) for p in root.glob("rank-*") if p.is_dir()}
    folders = {rank: p for p, rank in found.items() if rank is not None}
    pending = sorted(p for p in root.glob(f"{PENDING}*") if p.is_dir())
    for number, folder in enumerate(pending, start=max(folders, default=-1) + 1):
        message = f"{folder.name} has no rank: its process ended before it learned one; it is shown as rank {number}"
        findings.append(RANK_UNKNOWN(folder.name, message))
        folders[number] = folder
    return folders


def _zero(manifest: dict[str, Any], first: Path) -> int:
    """Return the run's zero: the manifest's if it is plausible (close to today), else that of the first rank, whose
    records are then read for it."""
    said = manifest.get("zero_unix_ns")
    if isinstance(said, int) and abs(said - time.time_ns()) < FAR_NS:
        return said
    try:
        events = RecordReader(first).read().events
    except OSError:  # told when the rank is read
        return said if isinstance(said, int) else 0
    return Clock.of(events, said if isinstance(said, int) else None).zero_unix_ns


def read_rank(source: RecordedRank, findings: list[Finding]) -> Recorded:
    """Read one rank. Raises RunDirectoryError if its records have another major schema version or cannot be read. The
    groups of a rank that does not belong to this run get other names, so that it is compared with no rank of it."""
    folder, rank, manifest = source.folder, source.rank, source.manifest
    meta = read_json(folder / META) or {}
    newer = check_version(meta.get("schema", SCHEMA_VERSION), folder / META)
    if newer is not None and manifest.get("schema") != meta.get("schema"):
        findings.append(NEWER_SCHEMA(folder.name, newer))
    stranger = _other_run(source, meta, findings) or _other_rank(source, meta, findings)
    records = records_of(folder)
    recorded = rank_run(records, meta, rank=rank, zero_unix_ns=source.zero_unix_ns)
    told = recording_of(records, recorded.run.groups, rank)
    recorded = replace(recorded, run=replace(recorded.run, recording=told, device_ranks=source.device_ranks))
    findings.extend(recorded.findings)
    if not len(records.events):
        findings.append(RANK_EMPTY(f"rank {rank}", f"{folder.name} holds no records"))
    return recorded if stranger is None else replace(recorded, run=_set_apart(recorded.run, stranger))


def is_of_another_run(meta: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether a rank's records carry another run's id."""
    same_job = meta.get("job") is not None and meta.get("job") == manifest.get("job")  # ended before it learned the id
    told = "run_id" in meta and "run_id" in manifest
    return told and meta["run_id"] != manifest["run_id"] and not same_job


def other_rank(source: RecordedRank, meta: Mapping[str, Any]) -> int | None:
    """Return the rank that recorded the folder's content, if its name is that of another rank."""
    said = meta.get("rank")
    return said if isinstance(said, int) and said != source.rank else None


def _other_run(source: RecordedRank, meta: dict[str, Any], findings: list[Finding]) -> str | None:
    """Add a finding if a rank's records belong to another run. Return that run in words, else None."""
    if not is_of_another_run(meta, source.manifest):
        return None
    message = (
        "this rank's records have the id of another run: it entered its trace apart from rank 0, or its folder is left"
        " from an earlier run; it is compared with no rank of this run"
    )
    findings.append(OTHER_RUN(f"rank {source.rank}", message))
    return f"run {str(meta['run_id'])[:8]}"


def _other_rank(source: RecordedRank, meta: dict[str, Any], findings: list[Finding]) -> str | None:
    """Add a finding if a folder holds what another rank recorded. Return words for it if it is a copy of a folder here,
    else None: swapped folders are still compared."""
    said, folder = other_rank(source, meta), source.folder
    if said is None:
        return None
    original = read_json(folder.parent / f"rank-{said:05d}" / META) or {}
    is_copy = original.get("rank") == said and original.get("run_id") == meta.get("run_id")
    left_out = "; it is compared with no other rank, since that one is here too" if is_copy else ""
    message = f"{folder.name} holds what rank {said} recorded: put the ranks' folders back as they were{left_out}"
    findings.append(OTHER_RANK(f"rank {source.rank}", message))
    return f"a copy, rank {source.rank}" if is_copy else None


def _set_apart(run: RankRun, stranger: str) -> RankRun:
    """Rename the groups of a rank that do not belong to this run although they have the same names."""
    calls = tuple(replace(call, group=_apart(call.group, stranger)) for call in run.calls)
    groups = tuple(replace(group, name=_apart(group.name, stranger)) for group in run.groups)
    return replace(run, calls=calls, groups=groups)


def _apart(group: str, stranger: str) -> str:
    return f"{group} of {stranger}"


def is_empty(folder: Path) -> bool:
    """Whether the folder is empty. Raises RunDirectoryError if it may not be listed."""
    try:
        return next(folder.iterdir(), None) is None
    except OSError as error:
        raise _unreadable(folder, error) from error


def records_of(folder: Path) -> Records:
    """Read a rank's records. Raises RunDirectoryError if they cannot be read."""
    is_empty(folder)  # a pattern finds nothing in a folder that may not be listed
    try:
        return RecordReader(folder).read()
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: OSError) -> RunDirectoryError:
    return RunDirectoryError(f"{folder} cannot be read: {error.strerror}; check its permissions")


def _said_world_size(manifest: dict[str, Any]) -> int | None:
    said = manifest.get("world_size")
    return said if isinstance(said, int) and 0 < said <= MOST_RANKS else None


def missing_ranks(world_size: int | None, present: Iterable[int]) -> Iterator[Finding]:
    """Yield a finding about ranks that took part and left no folder."""
    missing = sorted(set(range(world_size or 0)) - set(present))
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        message = (
            f"{len(missing)} of {world_size} ranks have no folder here ({listed}): they did not enter ddptrace.trace, "
            "or wrote elsewhere (another host's disk?); copy their folders here to see them"
        )
        yield RANK_MISSING("run", message)


def recording_of(records: Records, groups: Iterable[Group], rank: int) -> Recording:
    """Return what was lost, and when the rank worked last. `groups`: those that its records describe."""
    return Recording(
        rank,
        _worked_unix_ns(records),
        tuple(sorted({group.backend for group in groups if group.backend})),
        records.dropped,
        records.dropped_without_room,
        records.dropped_in_bursts,
        records.torn,
        records.damaged,
    )


def _worked_unix_ns(records: Records) -> int:
    clock = Clock.of(records.events, None)
    if clock.tie_ns is None:
        return 0
    near = clock.near(records.events)
    worked = near[~np.isin(near["kind"], BESIDE)]
    ends = np.maximum(worked["begin"], worked["end"])
    return max(0, int(ends.max(initial=-clock.tie_ns)) + clock.tie_ns)
