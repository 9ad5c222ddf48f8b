"""Records that could not be written, counted by why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Dropped:
    """`without_room`: no file could be made for them; `in_bursts`: they came faster than one was made; `unwritable`: a
    value was out of its field's range, or the file closed under the writer."""

    without_room: int = 0
    in_bursts: int = 0
    unwritable: int = 0

    @property
    def total(self) -> int:
        return self.without_room + self.in_bursts + self.unwritable
