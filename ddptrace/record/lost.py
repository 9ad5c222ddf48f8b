"""Counts records that could not be written, by reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Dropped:
    """Numbers of records that could not be written.

    `without_room`: no file could be made for them. `in_bursts`: they came faster than files were made. `unwritable`: a
    value was out of its field's range, or the file was closed during the write.
    """

    without_room: int = 0
    in_bursts: int = 0
    unwritable: int = 0

    @property
    def total(self) -> int:
        return self.without_room + self.in_bursts + self.unwritable
