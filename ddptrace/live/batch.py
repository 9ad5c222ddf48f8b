"""What a reader of a growing run returns: complete steps of one rank, and counts of what was lost over all reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ddptrace.analysis.rank_tables import RankTables
from ddptrace.record import Records


@dataclass(frozen=True, slots=True)
class Identity:
    """Which rank of which run wrote the records.

    `attempt`: number of the attempt of a restarted job, from 0; each attempt has its own run id. `meta`: `meta.json` as
    it was when the id became known, with rank 0's `versions` if it has none.
    """

    run_id: str
    rank: int
    attempt: int
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Losses:
    """What is missing of one rank's records so far.

    Numbers of records: `without_room` and `in_bursts` as in `Records`; `unwritable` were dropped for other reasons;
    `torn` were overwritten or cut off; `unread_records` were read, and dropped because no step ended. `unread_steps`:
    number of steps that were deleted before they were read. `damaged`: a sentence for each file that was changed after
    it was written, or cannot be read.
    """

    without_room: int = 0
    in_bursts: int = 0
    unwritable: int = 0
    torn: int = 0
    unread_steps: int = 0
    unread_records: int = 0
    damaged: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """The number of missing records, without those of unread steps."""
        return self.without_room + self.in_bursts + self.unwritable + self.torn + self.unread_records


@dataclass(frozen=True, slots=True)
class RankNow:
    """The state of one rank, as far as read.

    `worked_unix_ns`: time of its newest record of the training itself; `beat_unix_ns`: of its newest record, which is
    newer if the rank hangs, since its clock is still recorded. `closed`: it recorded its end; `gone`: it ended without
    that; `removed`: its folder was removed, moved or replaced before its end was read. `waits`: more is on the disk.
    """

    identity: Identity
    found: int  # as in `RankBatch`
    beat_unix_ns: int
    worked_unix_ns: int
    closed: bool
    gone: bool
    removed: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class RankBatch:
    """Tables in which the steps of these ordinals are complete. Other steps in them are not, or were returned before.

    `zero_unix_ns`: the zero of their instants, the same for all batches of a rank. `is_last`: nothing follows, so that
    rows outside of all steps are complete, too. `losses`, and `found`, the number of recorded steps, count from the
    rank's start; `beat_unix_ns`: time of its newest record. `Identity.meta` never changes between batches.
    """

    identity: Identity
    zero_unix_ns: int
    tables: RankTables
    steps: range
    is_last: bool
    losses: Losses
    found: int
    beat_unix_ns: int


class LossTally:
    """Counts lost records.

    Each file has the writer's count of dropped records since its start, so the largest count is right. Torn records are
    found once, so they are added up. `closed`: the writer recorded its end. `unread_records`: see `Losses`.
    """

    def __init__(self) -> None:
        self.closed = False
        self.unread_records = 0
        self._dropped = self._without_room = self._in_bursts = self._torn = 0
        self._damaged: tuple[str, ...] = ()

    def add(self, fresh: Records) -> None:
        self.closed |= fresh.closed
        self._dropped = max(self._dropped, fresh.dropped)
        self._without_room = max(self._without_room, fresh.dropped_without_room)
        self._in_bursts = max(self._in_bursts, fresh.dropped_in_bursts)
        self._torn += fresh.torn
        self._damaged = tuple(
            dict.fromkeys((*self._damaged, *fresh.damaged))
        )  # a growing file is reported at each look

    def losses(self, *, unread_steps: int) -> Losses:
        counts = self._dropped, self._without_room, self._in_bursts, self._torn
        return replace(losses_of(*counts, self._damaged), unread_steps=unread_steps, unread_records=self.unread_records)


def losses_of(dropped: int, without_room: int, in_bursts: int, torn: int, damaged: tuple[str, ...]) -> Losses:
    """Tell the losses apart, from a reader's counts (`Records`)."""
    unwritable = max(0, dropped - without_room - in_bursts)
    torn = max(0, torn - unwritable)  # a value out of range leaves half a record behind
    return Losses(without_room, in_bursts, unwritable, torn, damaged=damaged)
