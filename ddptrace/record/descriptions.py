"""Texts by number, and records that describe the run, each with its text.

Records that find no room in the file are held back, and written once there is room. A name is written when it is used
again.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ddptrace.findings import DESCRIPTION_LOST, NAMES_LOST, FindingKind
from ddptrace.ops import family_of
from ddptrace.record.thin import LASTING, TOLD
from ddptrace.schema import EVENT, GUARD, STRING, TEXT_PER_RECORD, Kind

MOST_HELD_BACK: Final = 1000
"""How many may wait for room. If more come, the oldest are lost."""

NO_ROOM_FOR_NAMES: Final = (
    "the program has made more names, process groups or threads than ddptrace.Keep has room for: later ones share one"
    " name or are missing; raise ddptrace.Keep(nbytes=...)"
)

MOST_NAMES: Final = 1 << 14
"""How many different names are remembered. Further names, as of ever new groups or threads, share one name."""
TOO_MANY_NAMES: Final = "(one of too many names)"

MOST_CHUNKS: Final = 1 << 16
"""The most records of one text that their numbers allow."""


@dataclass(frozen=True, slots=True)
class Description:
    """A record with a text that no other record refers to, by id `number`. `text` None: it has already been written."""

    kind: Kind
    flags: int
    thread: int
    number: int
    text: str | None
    begin: int
    end: int
    a: int


class Descriptions:
    """Writes descriptions, from any thread.

    `write(shape, *fields)` appends a record and returns whether it could; `is_stuck` returns whether it could not;
    `note(kind, message)` records a finding.
    """

    def __init__(
        self,
        texts: Texts,
        write: Callable[..., bool],
        is_stuck: Callable[[], bool],
        note: Callable[[FindingKind, str], None],
    ) -> None:
        self._texts = texts
        self._write = write
        self._is_stuck = is_stuck
        self._note = note
        self._held_back: deque[Description] = deque(maxlen=MOST_HELD_BACK)
        self._names_noted = False

    def add(self, one: Description) -> None:
        text = one.text or ""
        if one.kind in LASTING and not self._texts.takes(text, more=1):
            return  # a note reports it
        if records_of(text) > self._texts.most:
            self._note_large(one.kind, records_of(text) * TEXT_PER_RECORD)
        elif self._is_stuck() or not self._written(one):
            self._held_back.append(one)

    def write_anew(self, make_room: Callable[[], None]) -> None:
        """Write what was held back. A text that reaches the end of a file starts again in the next one."""
        while self._held_back and not self._is_stuck():
            one = self._held_back.popleft()
            if not self._written(one) and self._is_stuck():
                self._held_back.appendleft(one)
                make_room()
        if self._texts.is_full and not self._names_noted:
            self._names_noted = True
            self._note(NAMES_LOST, NO_ROOM_FOR_NAMES)

    def _written(self, one: Description) -> bool:
        """Write the record and its text. Returns whether all was written."""
        return (one.text is None or self._texts.write_out(one.number, one.text)) and self._write(
            EVENT, one.kind, one.flags, one.thread, one.number, one.begin, one.end, one.a, 0, 0, 0, 0, 0, 0, GUARD
        )

    def _note_large(self, kind: Kind, nbytes: int) -> None:
        message = (
            f"the description of a {kind.name.lower()} takes {nbytes:,} bytes, more than ddptrace.Keep has room for,"
            " and is not recorded; raise ddptrace.Keep(nbytes=...)"
        )
        self._note(DESCRIPTION_LOST, message)


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
