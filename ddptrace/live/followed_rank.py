"""One rank of a run directory, from its folder's first appearance to its last record."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from ddptrace.live.batch import Identity, Losses, RankBatch, RankNow
from ddptrace.live.endings import has_gone, made_unix_ns
from ddptrace.live.identity import read_identity
from ddptrace.live.rank_follower import RankFollower
from ddptrace.record.directory import read_json
from ddptrace.schema import META

READ_EVERY_S: Final = 1.0
"""The least time between two reads, since the file that is being written is read whole."""
MISSED_LOOKS: Final = 2
"""A folder that is missing this often in a row was removed; during a rename it is missing once."""


class FollowedRank:
    """One rank. Nothing is read before its number and run id are known.

    `is_behind`: more is there than the last look returned; `waits`: more is on the disk than was read; `is_over`:
    nothing more will come.
    """

    def __init__(self, attempt: int, folder: Path) -> None:
        self.attempt = attempt
        self.identity: Identity | None = None
        self.is_behind = False
        self.is_over = False
        self._follower = RankFollower(folder)
        self._folder = folder
        self._read_at_s = float("-inf")
        self._missed_looks = 0
        self._unreadable: str | None = None
        self.waits = False
        self._final = False  # nothing more will come there

    @property
    def closed(self) -> bool:
        """Whether it recorded its end."""
        return self._follower.closed

    def losses(self) -> Losses:
        known = self._follower.losses(final=self.is_over)
        return known if self._unreadable is None else replace(known, damaged=(*known.damaged, self._unreadable))

    def now(self) -> RankNow | None:
        """Return its state; None while its number is unknown."""
        if self.identity is None:
            return None
        worked = self._follower.worked_unix_ns() or self.beat_unix_ns()
        gone = self.is_over and not self.closed
        removed = gone and self._missed_looks >= MISSED_LOOKS
        found, beat = self._follower.found(), self.beat_unix_ns()
        return RankNow(self.identity, found, beat, worked, self.closed, gone, removed, self.waits)

    def beat_unix_ns(self) -> int:
        """Return the time of its newest record, else of its newest file."""
        return self._follower.beat_unix_ns() or made_unix_ns(self._folder)

    def is_at(self, folder: Path | None) -> bool:
        """Set its folder, None if missing. Returns False if the folder belongs to another run now."""
        if folder is None:
            self._missed_looks += 1
            return True
        said = (read_json(folder / META) or {}).get("run_id")
        if self.identity is not None and said not in (None, self.identity.run_id):
            return False
        self._missed_looks = 0
        self._folder = self._follower.folder = folder
        return True

    def remove(self) -> None:
        """Its folder belongs to another run now, so nothing more can be read."""
        self._missed_looks = MISSED_LOOKS

    def take_in(self, silent_ns: int, unnamed: int, newest: int | None = None) -> bool:
        """Read what is new. Returns whether there may be a batch.

        `silent_ns`: time since the newest record of its attempt; `unnamed`: its number if it ended without learning it;
        `newest`: how many steps are wanted; older ones are skipped.
        """
        if self.is_over:
            return False
        gone = self._has_gone(silent_ns)  # checked before reading, so that no record is missed
        self.identity = self.identity or read_identity(self._folder, final=gone, rank=unnamed)
        if self.identity is None:
            return False
        self.waits = self._read(gone)
        self._final = not self.waits and (gone or self.closed)
        is_skipping = newest is not None and self._is_skipping(newest)
        self.is_behind = is_skipping
        return not is_skipping

    def give_out(self) -> RankBatch | None:
        """Return the next batch of what was read; None if there is none."""
        if self.identity is None:
            return None
        batch = self._follower.next_batch(self.identity, final=self._final)
        self.is_over = self._final and (batch is None or batch.is_last)
        self.is_behind = not self.is_over and (self.waits or batch is not None)
        return batch

    def _is_skipping(self, newest: int) -> bool:
        """Skip steps that are too old. Returns whether to read on before returning a batch."""
        self._follower.skip_all_but(newest)
        return self.waits and self._follower.has_room

    def _has_gone(self, silent_ns: int) -> bool:
        if self._missed_looks >= MISSED_LOOKS:
            return True
        meta = read_json(self._folder / META) or {}
        return has_gone(meta, self.beat_unix_ns(), time.time_ns(), silent_ns=silent_ns)

    def _read(self, gone: bool) -> bool:
        """Read once. Returns whether more is on the disk."""
        if self._missed_looks or self.closed:
            return False
        if not gone and not self.is_behind and time.monotonic() - self._read_at_s < READ_EVERY_S:
            return False
        try:
            waits = self._follower.read(live=not gone)
        except OSError as error:
            self._unreadable = f"{self._folder.name} cannot be read: {error.strerror}; check its permissions"
            return False
        self._unreadable = None
        self._read_at_s = float("-inf") if waits else time.monotonic()
        return waits
