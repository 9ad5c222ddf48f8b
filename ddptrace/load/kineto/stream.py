"""From pieces of a file to batches of its events, and to what the file says outside its events. At most a few MB of the
file are in memory at a time.

The file writes the begin of each event alike, so a cut between two events is guessed from that. The text before the cut
is then parsed as a list. If it does not parse, the guess was wrong, and brackets are counted instead. If it parses, the
guess was right: text that begins between two elements and is a whole list also ends between two. Brackets are counted
at both ends of the list, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ddptrace.load.kineto.args import REFUSED, count, rank_list, text
from ddptrace.load.kineto.events import FAR_NS, FileFacts
from ddptrace.load.kineto.source import NotATrace, Source
from ddptrace.load.kineto.text import COMMA, ListEnd, Surroundings, behind_gap, cleaned, elements
from ddptrace.load.tables import MOST_RANKS

BASE: Final = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(-?\d{1,19})(?![\d.eE])')
BATCH_NBYTES: Final = 1 << 20
LONGEST_NBYTES: Final = 64 << 20  # of one event; the largest that were seen hold stacks of some 100 kB
AROUND_NBYTES: Final = 32 << 20  # of all that stands around the events; groups and ranks of a large job are some MB
MOST_LISTS: Final = 16  # of a key written twice the last one counts; nobody writes it more often
EVENT_OPENS: Final = re.compile(rb'\{\s*+"[^"\\]{1,64}"\s*+:')


class OutermostKeys(msgspec.Struct):
    """Keys of the outermost object. What they hold is judged where it is used."""

    events: Any = msgspec.field(default=None, name="traceEvents")
    base: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    host: Any = msgspec.field(default=None, name="host_name")


def told_by(around: bytes) -> OutermostKeys | None:
    """Read the text around a file's events, which has `[]` in their place; None where it cannot be read whole."""
    for attempt in (bytes, cleaned):
        try:
            told = msgspec.json.decode(attempt(around), type=OutermostKeys | list[Any])
        except REFUSED:
            continue
        return told if isinstance(told, OutermostKeys) else OutermostKeys(events=told)
    return None


def base_ns(told: OutermostKeys) -> int | None:
    """Return the instant that the file's times count from; None if the file does not name it."""
    is_whole = isinstance(told.base, int) and not isinstance(told.base, bool) and -FAR_NS < told.base < FAR_NS
    return told.base if is_whole else None


def base_in_ruins(around: bytes) -> int | None:
    """Return the same for a text that cannot be read as a whole."""
    found = BASE.findall(around)
    return base_ns(OutermostKeys(base=int(found[-1]))) if found else None


def facts_of(told: OutermostKeys, damage: str | None = None) -> FileFacts:
    """Keep the values of the right type."""
    info = told.distributed if isinstance(told.distributed, dict) else {}
    world_size = count(info.get("world_size"))
    first = told.devices[0] if isinstance(told.devices, list) and told.devices else None
    return FileFacts(
        rank=count(info.get("rank")),
        world_size=world_size,
        backend=text(info.get("backend")),
        device_name=text(first.get("name")) if isinstance(first, dict) else None,
        host=text(told.host),
        groups=_groups(info.get("pg_config"), world_size),
        damage=damage,
    )


def _groups(config: Any, world_size: int | None) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    found = [group for group in config if isinstance(group, dict)] if isinstance(config, list) else []
    named = [(text(group.get("pg_name")), text(group.get("backend_config")) or "", group) for group in found]
    return tuple((name, backend, _ranks(group, world_size)) for name, backend, group in named if name is not None)


def _ranks(group: dict[str, Any], world_size: int | None) -> tuple[int, ...]:
    """Ranks of a group; empty if unknown. torch writes an empty list for the group of all ranks."""
    given = group.get("ranks", group.get("Process Group Ranks"))
    size = count(group.get("pg_size", group.get("group_size")))
    if given in ([], "[]") and size is not None and size == world_size and size <= MOST_RANKS:
        return tuple(range(size))
    return rank_list(given) or ()


def what_it_is(around: bytes) -> str:
    """Describe a file without a list of events."""
    for attempt in (bytes, cleaned):
        try:
            keys = msgspec.json.decode(attempt(around), type=dict[str, msgspec.Raw])
        except REFUSED:
            continue
        if "traceEvents" in keys:
            return "JSON whose traceEvents is not a list of events"
        return "an execution trace (it has nodes)" if "nodes" in keys else "JSON without traceEvents"
    return "not JSON"


class Event(msgspec.Struct, gc=False):
    """One event, with what is needed only now and then, or as exact digits, left as text."""

    ph: str = ""
    cat: str | None = None
    name: int | float | str | None = ""
    pid: int | float | str | None = 0  # files from the wild write ids as any of these
    tid: int | float | str | None = 0
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")
    args: msgspec.Raw = msgspec.Raw(b"null")


_EVENT: Final = msgspec.json.Decoder(Event)


class EventStream:
    """Reads one source to its end. `take` is given the events, each as an `element`; `restart` is called where an
    earlier list is void. `scan` may take in all events between two places of a text before `take`: it returns their
    number, else None."""

    def __init__(
        self,
        take: Callable[[list[Any]], None],
        restart: Callable[[], None],
        scan: Callable[[bytearray, int, int], int | None] = lambda text, begin, end: None,
        element: Any = Event,
    ) -> None:
        self.around = Surroundings()
        self.seen = 0  # elements of the list
        self.unreadable = 0  # those of them that are no event
        self.odd_gaps = 0  # between elements, where not one comma stands
        self.stopped = ""  # why the list was not read to its end
        self._take = take
        self._restart = restart
        self._scan = scan
        self._many = msgspec.json.Decoder(list[element])
        self._one = msgspec.json.Decoder(element)
        self._lists = 0
        self._is_inside = False
        self._needs_comma = False  # the last thing that was read is an element
        self._opens = b""  # how the file begins an event, as in `{"ph":`
        self._enough_nbytes = BATCH_NBYTES

    def read(self, source: Source) -> None:
        """Raises NotATrace where there is no list of events, or its file is damaged as a whole."""
        parts: list[bytes] = []
        for piece in source.pieces_ahead():
            parts.append(piece)
            if sum(map(len, parts)) >= self._enough_nbytes:
                parts = [self._read_part(parts, False)]
            if self.stopped:
                return
        self._read_part(parts, True)
        if not self._lists:
            raise NotATrace(self._what_instead(source))
        if self._is_inside and not self.stopped:
            self.stopped = "cut short"

    def _what_instead(self, source: Source) -> str:
        if not self.around.text.strip():
            return "it is cut short before its first event" if source.cut else "it is empty"
        return f"it is {what_it_is(self.around.text)}{', cut short' if source.cut else ''}"

    def _read_part(self, parts: list[bytes], is_last: bool) -> bytes:
        """Read as much of the text as can be read, and give back the rest."""
        while True:
            if not self._is_inside:
                behind = self._outside(b"".join(parts))
                if behind is None:
                    return b""
                parts = [behind]
            # One byte of room in front, where the bracket of a batch goes: text is too large to be copied for it.
            rest = self._inside(bytearray().join((b" ", *parts)), is_last)
            if self._is_inside:
                return rest
            parts = [rest]

    def _outside(self, text: bytes) -> bytes | None:
        """Take in text around the events. Where a list of them opens, give back what stands behind its bracket."""
        behind = self.around.add(text)
        if behind is None:
            self._judge_surroundings()
            return None
        self._lists += 1
        if self._lists > MOST_LISTS:
            raise NotATrace(f"it has traceEvents more than {MOST_LISTS} times")
        if self.seen:
            self._restart()
        self.seen = self.unreadable = self.odd_gaps = 0
        self._is_inside, self._needs_comma = True, False
        return behind

    def _judge_surroundings(self) -> None:
        if len(self.around.text) > AROUND_NBYTES:
            raise NotATrace(f"more than {AROUND_NBYTES >> 20} MB of it are not events")
        if not self._lists and self.around.text[:1000].lstrip()[:1] not in (b"{", b""):
            raise NotATrace("it is not JSON")

    def _inside(self, text: bytearray, is_last: bool) -> bytes:
        """Read elements of the list off the begin of the text. `_is_inside` is false afterwards where it ended."""
        begin, comma, at = behind_gap(text, 0), self._last_comma(text), 0
        is_regular = comma > begin and text.count(b",", 0, begin) == self._needs_comma
        if is_regular and self._read_at_once(text, begin - 1, comma):
            at, self._needs_comma, self._enough_nbytes = comma + 1, False, BATCH_NBYTES
            if not is_last:
                return bytes(text[at:])
        return self._read_each(text, at, is_last)

    def _last_comma(self, text: bytearray) -> int:
        """Where the comma before the last event that begins in the text seems to be; -1 where none is seen."""
        if not self._opens:
            first = EVENT_OPENS.match(text, behind_gap(text, 0))
            if not first:
                return -1
            self._opens = first[0]
        at = len(text)
        for _ in range(8):  # the same key may open an object within an event
            at = text.rfind(self._opens, 0, at)
            comma = text.rfind(b",", 0, max(at, 0))
            if comma < 0 or not text[comma + 1 : at].strip():
                return comma
        return -1

    def _read_at_once(self, text: bytearray, before: int, comma: int) -> bool:
        """Read what stands between these two places, which become brackets for as long as that takes."""
        scanned = self._scan(text, before + 1, comma)
        if scanned is not None:
            self.seen += scanned
            return True
        was = text[before]
        text[before], text[comma] = b"[]"
        try:
            events = self._many.decode(memoryview(text)[before : comma + 1])
        except REFUSED:
            return False
        finally:
            text[before], text[comma] = was, COMMA
        self.seen += len(events)
        self._take(events)
        return True

    def _read_each(self, text: bytearray, begin: int, is_last: bool) -> bytes:
        found = elements(text, begin, is_last, self._needs_comma)
        elements_read = (decoded(bytes(text[begin:end]), self._one) for begin, end in found.spans)
        events = [event for event in elements_read if event is not None]
        self.seen += len(found.spans)
        self.unreadable += len(found.spans) - len(events)
        self._take(events)
        self._opens = b""  # learnt anew: the file may write its next events otherwise
        self.odd_gaps += found.odd_gaps
        self._needs_comma = found.needs_comma
        self._is_inside = found.end is not ListEnd.CLOSED
        rest = bytes(text[found.at :])
        if found.end is ListEnd.BROKEN:
            self.stopped = "not JSON from there on"
        elif self._is_inside and len(rest) > LONGEST_NBYTES:
            self.stopped = f"one event of more than {LONGEST_NBYTES >> 20} MB"
        # What holds no whole event is looked at again only once it has doubled.
        self._enough_nbytes = max(BATCH_NBYTES, 2 * len(rest)) if self._is_inside else BATCH_NBYTES
        return rest


def decoded(text: bytes, decoder: msgspec.json.Decoder[Any] = _EVENT) -> Any:
    """One element of the list; None where it is no event, however its text is cleaned."""
    for attempt in (bytes, cleaned):
        try:
            return decoder.decode(attempt(text))
        except REFUSED:
            continue
    return None
