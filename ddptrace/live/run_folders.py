"""Finds the folders of a growing run, in which attempts and ranks appear and folders are renamed, and their owners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from ddptrace.live.batch import Identity
from ddptrace.load.run_folder import check_version, rank_of
from ddptrace.record.directory import PENDING, read_json
from ddptrace.schema import MANIFEST, META


@dataclass(frozen=True, slots=True)
class Found:
    """A rank's folder. `inode`: it stays the same when the folder is renamed; a new folder has another one."""

    attempt: int
    folder: Path
    inode: tuple[int, int]  # device, number

    @property
    def rank(self) -> int | None:
        return rank_of(self.folder)


def rank_folders(path: Path) -> Iterator[Found]:
    """Yield the folders by attempt, then name. Raises RunDirectoryError for another major schema version."""
    for attempt, root in sorted(_attempts(path).items()):
        for folder in sorted(root.glob("rank-*")):
            try:
                told = folder.stat()
            except OSError:  # it is just being renamed: find it at the next look
                continue
            found = Found(attempt, folder, (told.st_dev, told.st_ino))
            if S_ISDIR(told.st_mode) and (found.rank is not None or folder.name.startswith(PENDING)):
                _check(folder / META)
                yield found


def world_size(path: Path) -> int | None:
    """Return the world size of the newest attempt; None if rank 0 has not written it yet."""
    for _, root in sorted(_attempts(path).items(), reverse=True):
        said = (read_json(root / MANIFEST) or {}).get("world_size")
        if isinstance(said, int) and said > 0:
            return said
    return None


def newest_attempt(path: Path) -> Path:
    """Return the folder of the newest attempt. Raises RunDirectoryError for another major schema version."""
    attempts = _attempts(path)
    return attempts[max(attempts)]


def _attempts(path: Path) -> dict[int, Path]:
    below = {p.name.removeprefix("attempt-"): p for p in path.glob("attempt-*") if p.is_dir()}
    found = {0: path} | {int(number): p for number, p in below.items() if number.isdecimal()}
    for root in found.values():
        _check(root / MANIFEST)
    return found


def _check(file: Path) -> None:
    content = read_json(file)
    if content is not None and "schema" in content:
        check_version(content["schema"], file)


def read_identity(folder: Path, *, final: bool, rank: int = 0) -> Identity | None:
    """Read a rank's identity; None until its number and the run's id, which rank 0 writes, are known.

    `final`: decide with what is there; `rank`: number for a rank that never learned its own.
    """
    meta, manifest = read_json(folder / META) or {}, read_json(folder.parent / MANIFEST) or {}
    run_id, shared = meta.get("run_id"), manifest.get("run_id")
    number = folder.name.removeprefix("rank-")
    if not final and (run_id is None or not number.isdecimal() or shared not in (None, run_id)):
        return None
    own = int(number) if number.isdecimal() else rank
    meta = {name: manifest[name] for name in ("versions",) if name in manifest} | meta
    return Identity(str(run_id or shared or folder.parent), own, _attempt(folder.parent, manifest), meta)


def _attempt(root: Path, manifest: dict[str, Any]) -> int:
    said = manifest.get("attempt")
    if isinstance(said, int):
        return said
    number = root.name.removeprefix("attempt-")
    return int(number) if number.isdecimal() and number != root.name else 0
