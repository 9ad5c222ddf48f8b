"""From a run directory to `Run`: the manifest, every rank's records, and the profiler windows joined to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddptrace.errors import RunDirectoryError
from ddptrace.load.records import Recorded, rank_run
from ddptrace.load.tables import Finding, RankRun, Run
from ddptrace.load.windows import join_windows
from ddptrace.record import RecordReader
from ddptrace.schema import MANIFEST, META, SCHEMA_VERSION

PENDING = "rank-pending-"
MOST_RANKS = 1_000_000  # a manifest that says more is damaged


def read_run(path: Path) -> Run:
    """Read a run directory, or the last attempt of one.

    Damage is dropped and told in `findings`. Raises RunDirectoryError where there is no such directory, no run in it,
    or one of another major schema version.
    """
    if not _is_folder(path):
        raise RunDirectoryError(f"{path} is not a directory; give the one that was passed to ddptrace.trace")
    root, findings = _last_attempt(path)
    manifest = _read_manifest(root, findings)
    folders = _rank_folders(root, findings)
    if not folders:
        raise RunDirectoryError(
            f"{path} holds no run (no {MANIFEST} and no rank-* folder); was it recorded by ddptrace.trace?"
        )
    recorded = _read_ranks(folders, manifest, findings)
    world_size = _world_size(manifest, recorded)
    _find_missing(world_size, folders, findings)
    ranks = tuple(_with_windows(folders[one.run.rank], one, findings) for one in recorded)
    zero = recorded[0].clock.zero_unix_ns
    run_id = str(manifest.get("run_id", ""))
    return Run(
        path, str(manifest.get("schema", SCHEMA_VERSION)), run_id, zero, world_size, ranks, tuple(findings), manifest
    )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name too long for the system
        return False


def check_version(version: object, where: Path) -> str | None:
    """None, or a sentence about a newer minor version. Raises RunDirectoryError for another major one."""
    major, _, minor = str(version).partition(".")
    ours_major, _, ours_minor = SCHEMA_VERSION.partition(".")
    if major != ours_major:
        raise RunDirectoryError(
            f"{where} was written in schema version {version}, and this ddptrace reads {ours_major}.x; "
            "analyze it with the ddptrace that recorded it"
        )
    if minor.isdigit() and int(minor) > int(ours_minor):
        return f"written in schema version {version}, newer than {SCHEMA_VERSION}: what is unknown here is ignored"
    return None


def _last_attempt(path: Path) -> tuple[Path, list[Finding]]:
    attempts = [p for p in path.glob("attempt-*") if p.is_dir() and p.name.removeprefix("attempt-").isdecimal()]
    if not attempts:
        return path, []
    last = max(attempts, key=lambda p: int(p.name.removeprefix("attempt-")))
    message = f"the job was restarted {len(attempts)} times; this is {last.name}, the earlier ones lie beside it"
    return last, [Finding("restarted", "info", str(path), message)]


def _read_json(path: Path) -> dict[str, Any] | None:
    """The file's object; None where there is no such file or it is not one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _read_manifest(root: Path, findings: list[Finding]) -> dict[str, Any]:
    manifest = _read_json(root / MANIFEST)
    if manifest is None:
        state = "cannot be read" if (root / MANIFEST).exists() else "is missing"
        message = f"{MANIFEST} {state}: the run's size and zero are taken from the ranks"
        findings.append(Finding("no-manifest", "warning", MANIFEST, message))
        return {}
    newer = check_version(manifest.get("schema", SCHEMA_VERSION), root / MANIFEST)
    if newer is not None:
        findings.append(Finding("newer-schema", "info", MANIFEST, newer))
    return manifest


def _rank_folders(root: Path, findings: list[Finding]) -> dict[int, Path]:
    folders = {int(p.name[5:]): p for p in root.glob("rank-*") if p.is_dir() and p.name[5:].isdecimal()}
    pending = sorted(p for p in root.glob(f"{PENDING}*") if p.is_dir())
    for number, folder in enumerate(pending, start=max(folders, default=-1) + 1):
        message = f"{folder.name} never learned its rank (the process ended first); it is shown as rank {number}"
        findings.append(Finding("rank-unknown", "warning", folder.name, message))
        folders[number] = folder
    return folders


def _read_ranks(folders: dict[int, Path], manifest: dict[str, Any], findings: list[Finding]) -> list[Recorded]:
    """Every rank on one time axis: the manifest's zero, or without it that of the first rank."""
    said = manifest.get("zero_unix_ns")
    zero = said if isinstance(said, int) else None
    recorded: list[Recorded] = []
    for rank, folder in sorted(folders.items()):
        recorded.append(_read_rank(folder, rank, manifest, zero, findings))
        zero = recorded[0].clock.zero_unix_ns
    return recorded


def _read_rank(
    folder: Path, rank: int, manifest: dict[str, Any], zero_unix_ns: int | None, findings: list[Finding]
) -> Recorded:
    meta = _read_json(folder / META) or {}
    newer = check_version(meta.get("schema", SCHEMA_VERSION), folder / META)
    if newer is not None and manifest.get("schema") != meta.get("schema"):
        findings.append(Finding("newer-schema", "info", folder.name, newer))
    if "run_id" in meta and "run_id" in manifest and meta["run_id"] != manifest["run_id"]:
        message = (
            "this rank's records carry another run's id: it entered its trace apart from rank 0, or is left from before"
        )
        findings.append(Finding("other-run", "warning", f"rank {rank}", message))
    try:
        records = RecordReader(folder).read()
    except OSError as error:
        raise RunDirectoryError(f"{folder} cannot be read: {error.strerror}; check its permissions") from error
    recorded = rank_run(records, meta, rank=rank, zero_unix_ns=zero_unix_ns)
    findings.extend(recorded.findings)
    if not len(records.events):
        findings.append(Finding("rank-empty", "error", f"rank {rank}", f"{folder.name} holds no records"))
    return recorded


def _world_size(manifest: dict[str, Any], recorded: list[Recorded]) -> int | None:
    said = manifest.get("world_size")
    if isinstance(said, int) and 0 < said <= MOST_RANKS:
        return said
    sizes = [len(group.ranks) for one in recorded for group in one.run.groups]
    return max(sizes, default=None)


def _find_missing(world_size: int | None, folders: dict[int, Path], findings: list[Finding]) -> None:
    missing = sorted(set(range(world_size or 0)) - set(folders))
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        message = (
            f"{len(missing)} of {world_size} ranks have no folder here ({listed}): they did not enter ddptrace.trace, "
            "or wrote elsewhere (another host's disk?); copy their folders here to see them"
        )
        findings.append(Finding("rank-missing", "warning", "run", message))


def _with_windows(folder: Path, recorded: Recorded, findings: list[Finding]) -> RankRun:
    run, found = join_windows(folder, recorded)
    findings.extend(found)
    return run
