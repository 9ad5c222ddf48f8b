"""Texts by number, each written before the first record that refers to it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Final

from ddptrace.ops import family_of
from ddptrace.record.thin import TOLD
from ddptrace.schema import GUARD, STRING, TEXT_PER_RECORD, Kind

MOST_NAMES: Final = 1 << 14
"""How many different names are remembered. Further names, as of ever new groups or threads, share one name."""
TOO_MANY_NAMES: Final = "(one of too many names)"

MOST_CHUNKS: Final = 1 << 16
"""The most records of one text that their numbers allow."""


class Texts:
    """Numbers and writes texts.

    `ids`: numbers of the names written so far. `write(shape, *fields)` appends a record and returns whether it could.
    `room`: how many records all lasting texts may take; once one did not fit, `is_full` is true. `most`: how many
    records one text may take.
    """

    def __init__(self, write: Callable[..., bool], room: int) -> None:
        self.ids: dict[str, int] = {"": 0}
        self.is_full = False
        self._numbers: dict[str, int] = {"": 0}  # also of names that could not be written for want of room
        self._write = write
        self.most = min(room, MOST_CHUNKS)
        self._room = room
        self._lock = threading.RLock()  # a signal's handler may come here while its thread holds it
        self._told = itertools.count(TOLD)

    def add(self, name: str) -> int:
        """Return the id of a name that may be new. A name that could not be written is tried again the next time."""
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
        """Reserve room for a lasting text and `more` records. Returns whether there was room."""
        with self._lock:
            size = records_of(text) + more
            fits = size <= min(self._room, self.most)
            self._room -= size if fits else 0
            self.is_full |= not fits
        return fits

    def number(self) -> int:
        """Return a new id for a text that only one record refers to, such as a description."""
        return next(self._told)

    def unpaired(self) -> list[int]:
        """Return the ids of the ops that are sends and receives."""
        return [number for name, number in self.ids.copy().items() if family_of(name).is_message]

    def write_out(self, number: int, text: str) -> bool:
        """Write a text. Returns whether all of it was written."""
        data = _encoded(text)
        for chunk in range(len(data) // TEXT_PER_RECORD + 1):
            part = data[chunk * TEXT_PER_RECORD : (chunk + 1) * TEXT_PER_RECORD]
            if not self._write(STRING, Kind.STRING, len(part), chunk, number, part, GUARD):
                return False
        return True


def records_of(text: str) -> int:
    """Return how many records a text takes."""
    return len(_encoded(text)) // TEXT_PER_RECORD + 1


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
