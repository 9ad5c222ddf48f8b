"""What a file is, and whose, without reading its events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from ddptrace.errors import RunDirectoryError
from ddptrace.load.kineto.args import REFUSED
from ddptrace.load.kineto.columns import CATEGORIES, Columns
from ddptrace.load.kineto.events import FAR_NS, FileFacts
from ddptrace.load.kineto.source import NotATrace, Source
from ddptrace.load.kineto.stream import (
    AROUND_NBYTES,
    Event,
    OutermostKeys,
    base_in_ruins,
    base_ns,
    decoded,
    facts_of,
    told_by,
    what_it_is,
)
from ddptrace.load.kineto.text import Surroundings, elements, nanoseconds

FIRST_NBYTES: Final = 64 << 10  # of the list, searched for its first event
TAIL_NBYTES: Final = 1 << 20
LIST_ENDS: Final = re.compile(rb"(?:\}|\A)\s*(\])\s*[,}]")
MOST_ENDS: Final = 1000  # lists in the tail that are tried
MOST_FIRST: Final = 1000  # events in the head that are tried


LEGACY_PID: Final = "CPU functions"
LEGACY: Final = (
    "what EventList.export_chrome_trace writes: it has no categories and no work of a device, and its times count from"
    " the profiler's start; export the trace by torch.profiler.profile"
)
DRAWN: Final = re.compile(rb'"tool":\s*"ddptrace"')  # in the head of our own trace for Perfetto


@dataclass(frozen=True, slots=True)
class FileHead:
    """What a file says of itself."""

    facts: FileFacts
    first_unix_ns: (
        int | None
    )  # begin of the first event that the reader keeps; None where none is seen or no base known
    is_trace: bool
    what: str  # what it is where it is no trace, to stand behind "it is"
    base_ns: int | None = None  # what the file's times count from, where `with_time` was asked for


def identify(path: Path, with_time: bool = False) -> FileHead:
    """Read the head of a file, and its tail where the head names no rank, or `with_time` and no base for its times.

    Raises RunDirectoryError where it cannot be opened, its packing is damaged, or reading it needs a package that is
    not installed.
    """
    try:
        return _identified(Source(path), with_time)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read ({error.strerror or error}); is it a whole file?") from error
    except ImportError as error:
        raise RunDirectoryError(f"{path} {error}") from error
    except NotATrace as error:
        raise RunDirectoryError(f"{path} cannot be read ({error}); record it again or leave it out") from error


def _identified(source: Source, with_time: bool) -> FileHead:
    is_perfetto, pieces = source.content()
    if is_perfetto:
        return _of_perfetto(pieces)
    around = Surroundings()
    events = _until_events(pieces, around)
    if events is None:
        return FileHead(FileFacts(), None, False, _what_instead(around))
    if DRAWN.search(around.text):
        return FileHead(FileFacts(), None, False, "a trace that ddptrace wrote: give the files that it was made from")
    is_list = around.text.lstrip()[:1] == b"["
    if is_list:
        first = next(filter(_has_time, _complete_events(events)), None)
        if first is None or (first.cat is None and first.pid == LEGACY_PID):
            return FileHead(FileFacts(), None, False, "a list without events" if first is None else LEGACY)
    told = told_by(around.text if is_list else around.text + b"}") or OutermostKeys()
    is_whole = is_list
    if not is_list and (told.distributed is None or (with_time and told.base is None)):
        told, is_whole = _completed(told, _tail(events, pieces))
    base = base_ns(told)
    if base is None and is_whole:
        base = 0  # no base anywhere: the times count from the epoch
    first_unix_ns = None if base is None else _first_unix_ns(events, base)
    return FileHead(facts_of(told), first_unix_ns, True, "", base if with_time else None)


def _of_perfetto(packets: Iterator[bytes]) -> FileHead:
    from ddptrace.load.kineto.perfetto import begins

    first = next((at_ns for at_ns in begins(packets, CATEGORIES) if abs(at_ns) < FAR_NS), None)
    return FileHead(FileFacts(), first, first is not None, "a Perfetto trace without events of torch.profiler", 0)


def _until_events(pieces: Iterator[bytes], around: Surroundings) -> bytes | None:
    """Read until the list of events opens, and give back its begin; None where none opens in a reasonable head."""
    for piece in pieces:
        events = around.add(piece)
        if events is not None:
            return events + next(pieces, b"") if len(events) < FIRST_NBYTES else events
        is_object = around.text[:1000].lstrip()[:1] in (b"{", b"")
        if not is_object or around.has_nodes or len(around.text) > AROUND_NBYTES:
            return None
    return None


def _what_instead(around: Surroundings) -> str:
    if around.has_nodes:
        return "an execution trace (it has nodes)"
    return what_it_is(around.text) if around.text.strip() else "empty"


def _complete_events(events: bytes) -> Iterator[Event]:
    """Those in the head, each with its begin and length; the first of them may come twice."""
    for part in (events[:FIRST_NBYTES], events):
        for begin, end in elements(part, 0, False, False).spans:
            event = decoded(part[begin:end])
            if event is not None and event.ph == "X":
                yield event


def _has_time(event: Event) -> bool:
    """False for what a bare list of something else holds."""
    try:
        nanoseconds(bytes(event.ts))
    except ValueError:
        return False
    return True


def _first_unix_ns(events: bytes, base: int) -> int | None:
    """When the first event begins that the reader keeps too: it alone knows what is beyond any clock."""
    kept = (event for event in _complete_events(events) if (event.cat or "").lower() in CATEGORIES)
    for event in islice(kept, MOST_FIRST):
        columns = Columns()
        columns.add([event])
        begins = columns.finish(base, FileFacts()).begin_ns
        if len(begins):
            return int(begins[0])
    return None


def _tail(events: bytes, pieces: Iterator[bytes]) -> bytes:
    tail = events
    for piece in pieces:
        tail = tail[-TAIL_NBYTES:] + piece
    return tail


def _completed(told: OutermostKeys, tail: bytes) -> tuple[OutermostKeys, bool]:
    """Add what the file says behind its events, which end at the first bracket of the tail from which on the text, in
    an object of its own, is whole: such a bracket closes a list of the outermost object. False where there is none."""
    for found in islice(LIST_ENDS.finditer(tail), MOST_ENDS):
        try:
            rest = msgspec.json.decode(b'{"traceEvents": [%b' % tail[found.start(1) :], type=OutermostKeys)
        except REFUSED:
            continue
        return OutermostKeys(
            rest.events,
            rest.base or told.base,
            rest.distributed or told.distributed,
            rest.devices or told.devices,
            rest.host or told.host,
        ), True
    return OutermostKeys(
        told.events, base_in_ruins(tail) or told.base, told.distributed, told.devices, told.host
    ), False
