"""Who may write where in a run directory. Rank 0 decides whether it may be used; a rank writes only its own folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

from ddptrace.errors import RunDirectoryError
from ddptrace.schema import ANALYSIS, MANIFEST, META, rank_folder


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
        "or overwrite=True to replace it"
    )


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
    return manifest if manifest.exists() and (rank == 0 or _is_earlier(manifest)) else None


def _is_earlier(manifest: Path) -> bool:
    """Whether a manifest is surely not of this run: made on this host by this very process, or before it was born.
    Another host's clock and start tell nothing."""
    try:
        author = json.loads(manifest.read_text(encoding="utf-8")).get("author", {})
        if author.get("host") != socket.gethostname():
            return False
        return author.get("pid") == os.getpid() or manifest.stat().st_mtime < _born_unix_s()
    except (OSError, ValueError, AttributeError):
        return False


def _born_unix_s() -> float:
    """When this process started, as Linux tells it. Raises OSError elsewhere."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def _refuse(root: Path, taken: Path) -> None:
    raise RunDirectoryError(refusal(root, taken))


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
