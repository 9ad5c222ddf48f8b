"""Decides who may write where in a run directory. Anybody may have filled it, so only regular files are opened."""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import shutil
import socket
import stat
import time
from pathlib import Path
from typing import Any, Final, TypeGuard

from ddptrace.errors import RunDirectoryError
from ddptrace.schema import ANALYSIS, MANIFEST, META, rank_folder

PENDING: Final = "rank-pending-"
NOT_THE_CALLERS: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE)
)
"""The disk, the memory or the limit on open files is full, or the disk fails: another path is no help."""

APART_S: Final = 5.0  # hosts' clocks differ by less than this
MOST_JSON_NBYTES: Final = 4 << 20  # a manifest or a meta.json takes a few kB


def attempt_root(path: Path, attempt: int, job: str | None, *, judges: bool, overwrite: bool) -> tuple[int, Path]:
    """Return the number of this attempt of `job`, and its folder: `path` for the first attempt, else one below it.

    A launcher whose number of workers changes restarts them without raising the count: then this job has already
    recorded `attempt`, and the next number is taken. The rank that `judges` raises RunDirectoryError if `path` holds
    the run of another job, or with `overwrite` removes that run.
    """
    while job is not None and _is_done(_attempt_folder(path, attempt) / MANIFEST, job):
        attempt += 1
    root, first = _attempt_folder(path, attempt), path / MANIFEST
    if judges and attempt and job is not None and first.exists() and (read_json(first) or {}).get("job") != job:
        _clear_beside(root) if overwrite else _refuse(path, first)
    return attempt, root


def _attempt_folder(path: Path, attempt: int) -> Path:
    return path / f"attempt-{attempt}" if attempt else path


def _is_done(manifest: Path, job: str) -> bool:
    content = read_json(manifest) or {}
    return content.get("job") == job and _is_older(manifest, content.get("author"))


def claim(root: Path, rank: int | None, *, overwrite: bool) -> Path:
    """Make and return this rank's folder; with `rank` None (not known yet) one that `settle` renames later.

    Raises RunDirectoryError if the directory already holds a run or cannot be made, and OSError for an error of
    `NOT_THE_CALLERS`.
    """
    folder = root / (_pending() if rank is None else rank_folder(rank))
    try:
        root.mkdir(parents=True, exist_ok=True)
        if overwrite:
            _clear(root, folder, rank)
        elif taken := _taken(root, folder, rank):
            _refuse(root, taken)
        folder.mkdir()
    except OSError as error:
        if error.errno in NOT_THE_CALLERS:
            raise
        raise RunDirectoryError(
            f"cannot record into {root}: {error.strerror or error}; give ddptrace.trace a writable path"
        ) from error
    return folder


def _pending() -> str:
    """Make a unique name: in containers, processes of several hosts may share a pid, and even the host name."""
    return f"{PENDING}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def refusal(root: Path, taken: Path) -> str:
    return (
        f"{root} already holds a run ({taken.name}); give ddptrace.trace another directory, "
        "or overwrite=True to replace it (ddptrace.run: --out and --overwrite)"
    )


def release(root: Path, folder: Path, rank: int | None) -> None:
    """Undo a claim and remove what was recorded, so that this process's next trace can use the directory."""
    shutil.rmtree(folder, ignore_errors=True)
    if rank == 0:
        (root / MANIFEST).unlink(missing_ok=True)


def settle(folder: Path, rank: int, *, overwrite: bool) -> Path:
    """Rename a folder that was claimed before the rank was known.

    Raises OSError, and RunDirectoryError if the rank's folder exists; with `overwrite`, only if another process may be
    writing it.
    """
    target = folder.with_name(rank_folder(rank))
    if target.exists() and (_is_anothers(target) or not overwrite):
        _refuse(folder.parent, target)
    if overwrite:
        _clear(folder.parent, target, rank)
    folder.rename(target)
    return target


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no such file or it holds no object."""
    try:
        content = json.loads(read_regular(path, MOST_JSON_NBYTES).decode())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` so that a reader sees the old file or the new one, never a part. Raises OSError."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        beside.unlink(missing_ok=True)  # it may be a link to another file
        with beside.open("x", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")
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
    """Return a file or folder of an earlier run that is in this rank's way; None if there is none.

    Rank 0 refuses any run. Another rank may find the manifest of its own run, written by a faster rank 0.
    """
    if folder.exists():
        return folder
    manifest = root / MANIFEST
    if manifest.exists() and (rank == 0 or _is_earlier(manifest)):
        return manifest
    return next(root.glob("attempt-[0-9]*"), None) if rank == 0 else None


def _is_earlier(manifest: Path) -> bool:
    """Whether a manifest is certainly of another run: this process made it, or it is older than this process.

    For a manifest of another host, this cannot be decided.
    """
    author = (read_json(manifest) or {}).get("author")
    return _is_here(author) and (author.get("pid") == os.getpid() or _is_older(manifest, author))


def _is_anothers(folder: Path) -> bool:
    """Whether another process of this run may use a rank's folder: not if this one made it, or if it is older."""
    meta = read_json(folder / META) or {}
    if _is_here(meta) and meta.get("pid") == os.getpid():
        return False
    return _knows_birth() and not _is_older(folder, meta)


def _is_here(author: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(author, dict) and author.get("host") == socket.gethostname()


def _is_older(path: Path, author: Any) -> bool:
    """Whether a path was last changed before this process started, by its author's clock. False if that is unknown."""
    try:
        return path.stat().st_mtime < _born_unix_s() - (0 if _is_here(author) else APART_S)
    except (OSError, ValueError):
        return False


def _knows_birth() -> bool:
    try:
        return _born_unix_s() > 0
    except (OSError, ValueError):
        return False


def _born_unix_s() -> float:
    """Return when this process started, in Unix seconds. Works on Linux; raises OSError elsewhere."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def _refuse(root: Path, taken: Path) -> None:
    raise RunDirectoryError(refusal(root, taken))


def _clear_beside(attempt: Path) -> None:
    """Remove another job's run, except what this attempt's ranks may be making."""
    path = attempt.parent
    (path / MANIFEST).unlink(missing_ok=True)
    for left in (path / ANALYSIS, *path.glob("rank-*"), *path.glob("attempt-*")):
        if left != attempt:
            _remove(left)


def _clear(root: Path, folder: Path, rank: int | None) -> None:
    """Remove an earlier run: each rank its own folder, rank 0 also the common files."""
    _remove(folder)
    if rank == 0:
        # Without a manifest there is no run here, and a folder called "analysis" is not ours.
        analysis = [root / ANALYSIS] if (root / MANIFEST).is_file() else []
        (root / MANIFEST).unlink(missing_ok=True)
        pending = (left for left in root.glob(f"{PENDING}*") if _is_older(left, read_json(left / META)))
        for left in (*analysis, *root.glob("attempt-*"), *pending):
            _remove(left)


def remove_strangers(root: Path, world_size: int) -> None:
    """After overwriting, remove folders of ranks that an earlier, larger run had.

    A folder that another process may be writing stays, since the world may be larger than this rank knows yet.
    """
    for folder in root.glob("rank-[0-9]*"):
        number = folder.name.removeprefix("rank-")
        if number.isdigit() and int(number) >= world_size and not _is_anothers(folder):
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove as much of a folder as possible; of a link, only the link."""
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; links are followed.

    Raises OSError if it is anything else: a pipe would block, a device has no end, and opening some has side effects.
    """
    _refuse_irregular(path.stat(), path)
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    try:
        _refuse_irregular(os.fstat(file.fileno()), path)  # it may have been replaced
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: Path, most_nbytes: int) -> bytes:
    """Read a regular file. Raises OSError as `open_regular` does, and if the file is larger than `most_nbytes`."""
    with open_regular(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > most_nbytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(nbytes)


def _refuse_irregular(told: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(told.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
