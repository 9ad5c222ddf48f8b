"""Who may write where in a run directory. Rank 0 decides whether it may be used; a rank writes only its own folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any, Final

from ddptrace.errors import RunDirectoryError
from ddptrace.schema import ANALYSIS, MANIFEST, META, rank_folder

APART_S: Final = 5.0  # hosts' clocks are closer than this


def attempt_root(path: Path, attempt: int, job: str | None, *, judges: bool, overwrite: bool) -> tuple[int, Path]:
    """The number of this attempt of `job`, and where it is recorded: the first in `path` itself, others below it.

    A launcher whose workers change in number starts them anew without counting it: then `attempt` has been recorded,
    by the same job, and the next one is meant. One rank `judges`: raises RunDirectoryError where `path` holds the run
    of another job, which a restart is not to join; with `overwrite` it is removed.
    """
    while job is not None and _is_done(_attempt_folder(path, attempt) / MANIFEST, job):
        attempt += 1
    root, first = _attempt_folder(path, attempt), path / MANIFEST
    if judges and attempt and job is not None and first.exists() and _read(first).get("job") != job:
        _clear_beside(root) if overwrite else _refuse(path, first)
    return attempt, root


def _attempt_folder(path: Path, attempt: int) -> Path:
    return path / f"attempt-{attempt}" if attempt else path


def _is_done(manifest: Path, job: str) -> bool:
    content = _read(manifest)
    return content.get("job") == job and _is_older(manifest, content)


def claim(root: Path, rank: int | None, *, overwrite: bool) -> Path:
    """Make and return this rank's folder; with `rank` None (not known yet) one that `settle` renames later.

    Raises RunDirectoryError where the directory already holds a run that it would touch, or cannot be made,
    OSError where the disk is full.
    """
    folder = root / (f"rank-pending-{os.getpid()}" if rank is None else rank_folder(rank))
    try:
        root.mkdir(parents=True, exist_ok=True)
        taken = _taken(root, folder, rank)
        if taken is not None:
            _clear(root, folder, rank) if overwrite else _refuse(root, taken)
        folder.mkdir()
    except OSError as error:
        if error.errno == errno.ENOSPC:  # no mistake of the caller's
            raise
        raise RunDirectoryError(
            f"cannot record into {root}: {error.strerror or error}; give ddptrace.trace a path that can be written"
        ) from error
    return folder


def refusal(root: Path, taken: Path) -> str:
    return (
        f"{root} already holds a run ({taken.name}); give ddptrace.trace another directory, "
        "or overwrite=True to replace it (ddptrace.run: --out and --overwrite)"
    )


def release(root: Path, folder: Path, rank: int | None) -> None:
    """Take a claim back, with all that was recorded under it: the directory is free for this process's next trace."""
    shutil.rmtree(folder, ignore_errors=True)
    if rank == 0:
        (root / MANIFEST).unlink(missing_ok=True)


def settle(folder: Path, rank: int, *, overwrite: bool) -> Path:
    """Rename a folder claimed before the rank was known. Raises OSError; RunDirectoryError if that is taken."""
    target = folder.with_name(rank_folder(rank))
    if target.exists():
        _clear(folder.parent, target, rank) if overwrite else _refuse(folder.parent, target)
    folder.rename(target)
    return target


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` so that a reader sees the old file or the new one, never half. Raises OSError."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def write_manifest(root: Path, content: dict[str, Any]) -> None:
    author = {"host": socket.gethostname(), "pid": os.getpid()}
    write_json(root / MANIFEST, content | {"author": author})


def write_meta(folder: Path, content: dict[str, Any]) -> None:
    write_json(folder / META, content)


def _taken(root: Path, folder: Path, rank: int | None) -> Path | None:
    """What of an earlier run stands in this rank's way. Rank 0 minds any run; another rank may find the manifest of its
    own one, written by a quicker rank 0."""
    if folder.exists():
        return folder
    manifest = root / MANIFEST
    if manifest.exists() and (rank == 0 or _is_earlier(manifest)):
        return manifest
    return next(root.glob("attempt-[0-9]*"), None) if rank == 0 else None


def _is_earlier(manifest: Path) -> bool:
    """Whether a manifest is surely not of this run: made on this host by this very process, or before it was born.
    Another host's clock and start tell nothing."""
    content = _read(manifest)
    author = content.get("author")
    if not isinstance(author, dict) or author.get("host") != socket.gethostname():
        return False
    return author.get("pid") == os.getpid() or _is_older(manifest, content)


def _is_older(manifest: Path, content: dict[str, Any]) -> bool:
    """Whether a manifest with this content was there before this process was."""
    author = content.get("author")
    is_here = isinstance(author, dict) and author.get("host") == socket.gethostname()
    try:
        return manifest.stat().st_mtime < _born_unix_s() - (0 if is_here else APART_S)
    except (OSError, ValueError):
        return False


def _read(manifest: Path) -> dict[str, Any]:
    """Empty where there is none, or it is damaged."""
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _born_unix_s() -> float:
    """When this process started, as Linux tells it. Raises OSError elsewhere."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def _refuse(root: Path, taken: Path) -> None:
    raise RunDirectoryError(refusal(root, taken))


def _clear_beside(attempt: Path) -> None:
    """Remove another job's run, but for what this attempt's ranks may just be making."""
    path = attempt.parent
    (path / MANIFEST).unlink(missing_ok=True)
    for left in (path / ANALYSIS, *path.glob("rank-*"), *path.glob("attempt-*")):
        if left != attempt:
            shutil.rmtree(left, ignore_errors=True)


def _clear(root: Path, folder: Path, rank: int | None) -> None:
    """Remove what an earlier run left, each rank its own; rank 0 what belongs to all."""
    shutil.rmtree(folder, ignore_errors=True)
    if rank == 0:
        (root / MANIFEST).unlink(missing_ok=True)
        for left in (root / ANALYSIS, *root.glob("attempt-*")):
            shutil.rmtree(left, ignore_errors=True)


def remove_strangers(root: Path, world_size: int) -> None:
    """After overwriting: drop folders of ranks that an earlier, larger run had and this one has not."""
    for folder in root.glob("rank-[0-9]*"):
        number = folder.name.removeprefix("rank-")
        if number.isdigit() and int(number) >= world_size:
            shutil.rmtree(folder, ignore_errors=True)
