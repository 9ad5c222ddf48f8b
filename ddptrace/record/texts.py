"""Texts by number, each written out before the first record that names it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Final

from ddptrace.ops import family_of
from ddptrace.record.thin import TOLD
from ddptrace.schema import GUARD, STRING, TEXT_PER_RECORD, Kind

MOST_NAMES: Final = 1 << 14
"""So many different names are remembered. A program that goes on making some (of groups, of threads) has the rest of
them told as one."""
TOO_MANY_NAMES: Final = "(one of too many names)"

MOST_CHUNKS: Final = 1 << 16
"""Records have no number for further ones of one text."""

"""Ops whose names begin so are not issued by all ranks of a group."""


class Texts:
    """`ids` of the names written so far. `write(shape, *fields)` appends a record, and says whether it has. `room`: so
    many records may all that lasts take; once something did not fit, `is_full` is true. `most` records may one text
    take."""

    def __init__(self, write: Callable[..., bool], room: int) -> None:
        self.ids: dict[str, int] = {"": 0}
        self.is_full = False
        self._numbers: dict[str, int] = {"": 0}  # also of names that there was no room to write out
        self._write = write
        self.most = min(room, MOST_CHUNKS)
        self._room = room
        self._lock = threading.RLock()  # a signal's handler may come here while its thread holds it
        self._told = itertools.count(TOLD)

    def add(self, name: str) -> int:
        """The id of a name that may be new. One that could not be written out is, whenever it is named again."""
        with self._lock:
            if name not in self._numbers and (len(self._numbers) >= MOST_NAMES or not self.takes(name)):
                self.is_full, name = True, TOO_MANY_NAMES
            if name in self.ids:
                return self.ids[name]
            number = self._numbers.setdefault(name, len(self._numbers))
        if self.write_out(number, name):
            self.ids[name] = number
        return number

    def takes(self, text: str, more: int = 0) -> bool:
        """Whether there is room for a text that will last, and for `more` records; then they are counted."""
        with self._lock:
            size = records_of(text) + more
            fits = size <= min(self._room, self.most)
            self._room -= size if fits else 0
            self.is_full |= not fits
        return fits

    def number(self) -> int:
        """The id of a text that one record alone will name, as a description is, and that is not remembered."""
        return next(self._told)

    def unpaired(self) -> list[int]:
        """Ids of the ops that are sends and receives."""
        return [number for name, number in self.ids.copy().items() if family_of(name).is_message]

    def write_out(self, number: int, text: str) -> bool:
        """Whether all of it was written."""
        data = _encoded(text)
        for chunk in range(len(data) // TEXT_PER_RECORD + 1):
            part = data[chunk * TEXT_PER_RECORD : (chunk + 1) * TEXT_PER_RECORD]
            if not self._write(STRING, Kind.STRING, len(part), chunk, number, part, GUARD):
                return False
        return True


def records_of(text: str) -> int:
    """How many records hold a text."""
    return len(_encoded(text)) // TEXT_PER_RECORD + 1


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
