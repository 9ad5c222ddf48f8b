"""Adds up the lost records of one rank over the reads of its files."""

from __future__ import annotations

from ddptrace.live.batch import Losses
from ddptrace.record import Records


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
        unwritable = max(0, self._dropped - self._without_room - self._in_bursts)
        torn = max(0, self._torn - unwritable)  # a value out of range leaves half a record behind
        return Losses(
            self._without_room, self._in_bursts, unwritable, torn, unread_steps, self.unread_records, self._damaged
        )
