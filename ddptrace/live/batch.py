"""What a reader of a growing run gives out: complete steps of one rank, and what it could not give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddptrace.analysis.rank_tables import RankTables


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose records these are. `attempt`: of a restarted job, from 0; each has a run id of its own. `meta`: what the
    rank says of itself, `meta.json` as it was when its id was settled, and rank 0's `versions` where it says none."""

    run_id: str
    rank: int
    attempt: int
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Losses:
    """What is missing of one rank's records, so far. In records: `without_room` and `in_bursts` as in `Records`,
    `unwritable` dropped for other reasons, `torn` overwritten or cut off, `unread_records` read, and given up since no
    step ended for so long. `unread_steps`: recorded, and let go before they were read. `damaged`: a sentence for each
    file that was changed after it was written, or cannot be read."""

    without_room: int = 0
    in_bursts: int = 0
    unwritable: int = 0
    torn: int = 0
    unread_steps: int = 0
    unread_records: int = 0
    damaged: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """All that are missing, but those of unread steps."""
        return self.without_room + self.in_bursts + self.unwritable + self.torn + self.unread_records


@dataclass(frozen=True, slots=True)
class RankNow:
    """How far one rank is, as far as read. `worked_unix_ns`: its newest record of the training itself; one that hangs
    goes on recording its clock, so that `beat_unix_ns` is newer. `closed`: it said that it ended; `gone`: it ended
    without saying so; `removed`: its folder was removed, moved or replaced before that was read. `waits`: more of it
    lies on the disk."""

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
    """Tables in which the steps of these ordinals are complete; others in them are not, or were given out before.

    `zero_unix_ns`: what their instants count from, one for all batches of a rank. `is_last`: nothing follows, so that
    what is outside of all steps is complete too. `losses` and `found`, the steps that were recorded as far as is known,
    count from the rank's start; `beat_unix_ns`: its newest record. `Identity.meta` never changes between batches.
    """

    identity: Identity
    zero_unix_ns: int
    tables: RankTables
    steps: range
    is_last: bool
    losses: Losses
    found: int
    beat_unix_ns: int
