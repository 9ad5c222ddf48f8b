"""Records of what the run is made of, each with a text of its own, and written anew where there was no room for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ddptrace.findings import DESCRIPTION_LOST, NAMES_LOST, FindingKind
from ddptrace.record.texts import Texts, records_of
from ddptrace.record.thin import LASTING
from ddptrace.schema import EVENT, GUARD, TEXT_PER_RECORD, Kind

MOST_HELD_BACK: Final = 1000
"""So many wait for room. A program that makes more of them meanwhile loses the oldest."""

NO_ROOM_FOR_NAMES: Final = (
    "the program has made more names, process groups or threads than ddptrace.Keep has room for: later ones are told as"
    " one, or not at all; give ddptrace.Keep(nbytes=...) more"
)


@dataclass(frozen=True, slots=True)
class Description:
    """A record whose text, by id `number`, it alone names. `text` None: it is written already, for another record."""

    kind: Kind
    flags: int
    thread: int
    number: int
    text: str | None
    begin: int
    end: int
    a: int


class Descriptions:
    """Called from any thread. `write(shape, *fields)` appends a record, and says whether it has; `is_stuck` whether it
    would not; `note(kind, message)` records a finding."""

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
            return  # a note tells of it
        if records_of(text) > self._texts.most:
            self._note_large(one.kind, records_of(text) * TEXT_PER_RECORD)
        elif self._is_stuck() or not self._written(one):
            self._held_back.append(one)

    def write_anew(self, make_room: Callable[[], None]) -> None:
        """What was held back. A text that comes upon the end of a file begins anew in the next one."""
        while self._held_back and not self._is_stuck():
            one = self._held_back.popleft()
            if not self._written(one) and self._is_stuck():
                self._held_back.appendleft(one)
                make_room()
        if self._texts.is_full and not self._names_noted:
            self._names_noted = True
            self._note(NAMES_LOST, NO_ROOM_FOR_NAMES)

    def _written(self, one: Description) -> bool:
        """Whether all of it is."""
        return (one.text is None or self._texts.write_out(one.number, one.text)) and self._write(
            EVENT, one.kind, one.flags, one.thread, one.number, one.begin, one.end, one.a, 0, 0, 0, 0, 0, 0, GUARD
        )

    def _note_large(self, kind: Kind, nbytes: int) -> None:
        message = (
            f"the description of a {kind.name.lower()} takes {nbytes:,} bytes, more than ddptrace.Keep has room for,"
            " and is left out; give ddptrace.Keep(nbytes=...) more"
        )
        self._note(DESCRIPTION_LOST, message)
