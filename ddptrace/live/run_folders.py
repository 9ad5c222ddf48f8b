"""Finds the folders of a growing run and their owners, and decides from outside whether a rank will write more: it may
be silent, killed, or on another machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Final

from ddptrace.live.batch import Identity
from ddptrace.load.alive import process_of
from ddptrace.load.diagnosis.tables import BEAT_NS
from ddptrace.load.run_folder import check_version, rank_of
from ddptrace.record.directory import PENDING, read_json
from ddptrace.schema import MANIFEST, META

LEFT_NS: Final = 60 * 10**9
"""A run on other machines has ended if its newest record is older than this. A restart must come within this time."""
GONE_NS: Final = BEAT_NS * 3 // 2
"""A process that cannot be found and has been silent for this long is gone. One in another container keeps writing."""


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


def has_gone(meta: Mapping[str, Any], beat_unix_ns: int, now_unix_ns: int, *, silent_ns: int) -> bool:
    """Whether the process that writes a rank's records is gone.

    `beat_unix_ns`: time of its newest record; `silent_ns`: time since the newest record of any rank of its attempt.
    """
    runs = process_of(meta, beat_unix_ns).runs
    if runs is None:
        return silent_ns > LEFT_NS
    return not runs and now_unix_ns - beat_unix_ns > GONE_NS


def made_unix_ns(folder: Path) -> int:
    """Return when a rank's folder last changed, for a rank without a record yet; 0 if the folder is gone."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


class Silence:
    """The silence of one rank, or of several.

    A record that arrives while we look is new, whatever its timestamp: another machine's clock may be wrong by minutes.
    Only for records from before the first look the timestamp counts.
    """

    __slots__ = ("_newest_unix_ns", "_since_ns", "_was_behind")

    def __init__(self) -> None:
        self._newest_unix_ns: int | None = None
        self._since_ns = 0  # monotonic
        self._was_behind = False

    def ns(self, newest_unix_ns: int, *, is_behind: bool) -> int:
        """Return the silence until now.

        `newest_unix_ns`: time of the newest record read; `is_behind`: there is more to read, so that records that are
        new to the reader may be old.
        """
        now_ns, before = time.monotonic_ns(), self._newest_unix_ns
        if newest_unix_ns != before:
            came_in = before is not None and not is_behind and not self._was_behind
            self._since_ns = now_ns - (0 if came_in else max(0, time.time_ns() - newest_unix_ns))
            self._newest_unix_ns = newest_unix_ns
        self._was_behind = is_behind
        return now_ns - self._since_ns
