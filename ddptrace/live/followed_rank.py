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
"""The file that is being written is read whole, so no more often than this."""
MISSED_LOOKS: Final = 2
"""A folder that is not found so often in turn was removed; one that is just being renamed is not found once."""


class FollowedRank:
    """Nothing is read before the rank is known by name and run. `is_behind`: more waits than the last look gave;
    `waits`: on the disk, more than was taken in; `is_over`: nothing more will come."""

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
        """Whether it said that it ended."""
        return self._follower.closed

    def losses(self) -> Losses:
        known = self._follower.losses(final=self.is_over)
        return known if self._unreadable is None else replace(known, damaged=(*known.damaged, self._unreadable))

    def now(self) -> RankNow | None:
        """None while it is not known by name."""
        if self.identity is None:
            return None
        worked = self._follower.worked_unix_ns() or self.beat_unix_ns()
        gone = self.is_over and not self.closed
        removed = gone and self._missed_looks >= MISSED_LOOKS
        found, beat = self._follower.found(), self.beat_unix_ns()
        return RankNow(self.identity, found, beat, worked, self.closed, gone, removed, self.waits)

    def beat_unix_ns(self) -> int:
        """Of its newest record, else of the newest file."""
        return self._follower.beat_unix_ns() or made_unix_ns(self._folder)

    def is_at(self, folder: Path | None) -> bool:
        """Take note of where it lies now, None: nowhere. False where another run was made in its place."""
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
        """Its folder is another run's by now: what was read is all."""
        self._missed_looks = MISSED_LOOKS

    def take_in(self, silent_ns: int, unnamed: int, newest: int | None = None) -> bool:
        """Read what is new; whether there may be a batch. `silent_ns`: since the newest record of its attempt;
        `unnamed`: its number if it is gone and never learned it; `newest`: so many steps are wanted, and what waits
        before them is given up."""
        if self.is_over:
            return False
        gone = self._has_gone(silent_ns)  # asked before it is read, so that nothing comes in between
        self.identity = self.identity or read_identity(self._folder, final=gone, rank=unnamed)
        if self.identity is None:
            return False
        self.waits = self._read(gone)
        self._final = not self.waits and (gone or self.closed)
        is_skipping = newest is not None and self._is_skipping(newest)
        self.is_behind = is_skipping
        return not is_skipping

    def give_out(self) -> RankBatch | None:
        """The next batch of what was taken in."""
        if self.identity is None:
            return None
        batch = self._follower.next_batch(self.identity, final=self._final)
        self.is_over = self._final and (batch is None or batch.is_last)
        self.is_behind = not self.is_over and (self.waits or batch is not None)
        return batch

    def _is_skipping(self, newest: int) -> bool:
        """Whether what was read is of no interest yet, since more waits, and there is room for it."""
        self._follower.skip_all_but(newest)
        return self.waits and self._follower.has_room

    def _has_gone(self, silent_ns: int) -> bool:
        if self._missed_looks >= MISSED_LOOKS:
            return True
        meta = read_json(self._folder / META) or {}
        return has_gone(meta, self.beat_unix_ns(), time.time_ns(), silent_ns=silent_ns)

    def _read(self, gone: bool) -> bool:
        """Whether more waits on the disk."""
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
