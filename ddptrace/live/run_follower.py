"""Reads all ranks of a growing run directory from another process than the job.

Each rank is followed from the first appearance of its folder to its last record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ddptrace.errors import RunDirectoryError
from ddptrace.live.batch import Identity, Losses, RankBatch, RankNow
from ddptrace.live.rank_follower import RankFollower
from ddptrace.live.run_folders import (
    LEFT_NS,
    Found,
    Silence,
    has_gone,
    made_unix_ns,
    rank_folders,
    read_identity,
    world_size,
)
from ddptrace.record.directory import read_json
from ddptrace.schema import META

READ_EVERY_S: Final = 1.0
"""The least time between two reads, since the file that is being written is read whole."""
MISSED_LOOKS: Final = 2
"""A folder that is missing this often in a row was removed; during a rename it is missing once."""


class RunFollower:
    """Reads a run directory that grows; it need not exist yet.

    Each rank's batches come in the order of its steps, the ranks in turn, and those of all attempts of a restarted job
    together. A killed rank returns everything that it wrote. `host`: read only the ranks on this host. `newest`: number
    of newest steps per rank that are wanted; older ones count as unread. `is_behind`: more is there than the last look
    returned. `is_over`: nothing more will come. If a rank died, the job may be restarted, and ranks may start late, so
    then `is_over` only after `endings.LEFT_NS` without a record. `is_removed`: the directory was there, and has been
    missing for `endings.LEFT_NS`.
    """

    def __init__(self, path: Path, *, host: str | None = None, newest: int | None = None) -> None:
        """Raises RunDirectoryError if the path is not a directory."""
        if path.exists() and not path.is_dir():
            raise RunDirectoryError(f"{path} is a file; give the directory that ddptrace.trace writes to")
        self.newest = newest
        self.is_behind = False
        self.is_over = False
        self.world_size: int | None = None  # from rank 0 of the newest attempt
        self._path = path
        self._was_there = path.exists()
        self._missing_since_ns: int | None = None  # monotonic; None while the directory is there, or never was
        self._host = host
        self._at: dict[tuple[int, int], FollowedRank] = {}  # by inode
        self._ranks: list[FollowedRank] = []
        self._silences: dict[int, Silence] = {}  # by attempt

    @property
    def ranks(self) -> tuple[Identity, ...]:
        """The ranks whose numbers are known, in the order in which their folders were found."""
        return tuple(rank.identity for rank in self._ranks if rank.identity is not None)

    @property
    def is_removed(self) -> bool:
        since_ns = self._missing_since_ns
        return since_ns is not None and time.monotonic_ns() - since_ns > LEFT_NS

    def now(self) -> tuple[RankNow, ...]:
        """Return the state of each of `ranks`, in their order."""
        return tuple(now for rank in self._ranks if (now := rank.now()) is not None)

    def losses(self) -> dict[tuple[str, int], Losses]:
        """Return the losses of each rank so far, by run id and rank."""
        return {(rank.identity.run_id, rank.identity.rank): rank.losses() for rank in self._ranks if rank.identity}

    def look(self) -> Iterator[RankBatch]:
        """Yield one batch of every rank that has one, so that no rank delays the others.

        A rank that cannot be read is listed in its losses. Raises RunDirectoryError if the run has another major schema
        version.
        """
        self.is_behind = False
        self._note_whether_there()
        unnamed = self._discover()
        silent_ns = {rank.attempt: self._silent_ns(rank.attempt) for rank in self._ranks}
        taken = self._take_in(silent_ns, unnamed)
        for rank in (
            taken if self.newest is None else list(taken)
        ):  # read all first, so that the newest steps are of one time
            batch = rank.give_out()
            self.is_behind |= rank.is_behind
            if batch is not None:
                yield batch
        self.is_over = self._has_ended()

    def _note_whether_there(self) -> None:
        if self._path.exists():
            self._was_there, self._missing_since_ns = True, None
        elif self._was_there and self._missing_since_ns is None:
            self._missing_since_ns = time.monotonic_ns()

    def _take_in(self, silent_ns: Mapping[int, int], unnamed: int) -> Iterator[FollowedRank]:
        """Read each rank. Yields those that may have a batch."""
        for place, rank in enumerate(list(self._ranks)):
            if rank.take_in(silent_ns[rank.attempt], unnamed + place, self.newest):
                yield rank
            else:
                self.is_behind |= rank.is_behind

    def _discover(self) -> int:
        """Find the ranks' folders. Returns the first free number, for ranks that end without learning theirs."""
        found = {one.inode: one for one in rank_folders(self._path) if self._is_wanted(one)}
        self.world_size = world_size(self._path)
        for inode, one in found.items():
            if inode not in self._at or not self._at[inode].is_at(one.folder):
                self._begin(one)
        for inode, rank in self._at.items():
            if inode not in found:
                rank.is_at(None)
        return max((one.rank for one in found.values() if one.rank is not None), default=-1) + 1

    def _begin(self, found: Found) -> None:
        if (before := self._at.get(found.inode)) is not None:
            before.remove()
        self._at[found.inode] = FollowedRank(found.attempt, found.folder)
        self._ranks.append(self._at[found.inode])

    def _is_wanted(self, found: Found) -> bool:
        return self._host is None or (read_json(found.folder / META) or {}).get("host") == self._host

    def _silent_ns(self, attempt: int) -> int:
        """Return the time since any rank of this attempt recorded something."""
        ranks = [rank for rank in self._ranks if rank.attempt == attempt]
        newest_unix_ns, waits = max(rank.beat_unix_ns() for rank in ranks), any(rank.waits for rank in ranks)
        return self._silences.setdefault(attempt, Silence()).ns(newest_unix_ns, is_behind=waits)

    def _has_ended(self) -> bool:
        if not self._ranks:
            return self.is_removed
        if not all(rank.is_over for rank in self._ranks):
            return False
        newest = max(rank.attempt for rank in self._ranks)
        present = sum(rank.attempt == newest for rank in self._ranks)
        is_whole = self._host is not None or present >= (self.world_size or 1)
        return (is_whole and all(rank.closed for rank in self._ranks)) or self._silent_ns(newest) > LEFT_NS


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
