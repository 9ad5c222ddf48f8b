"""Records that describe the run, each with its text. Without room, they are written later."""

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
"""How many may wait for room. If more come, the oldest are lost."""

NO_ROOM_FOR_NAMES: Final = (
    "the program has made more names, process groups or threads than ddptrace.Keep has room for: later ones share one"
    " name or are missing; raise ddptrace.Keep(nbytes=...)"
)


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
