"""Batches of events as columns, small while they grow, and sorted by begin at the end. Nothing here knows what an event
means to us.

The compiled scanner gives rows of the parts of a file that it takes in; other parts come as events. Both end in the
same columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto.args import (
    ReadArgs,
    count,
    is_named_as_collective,
    read_args,
    said_of_collective,
    thread_name,
)
from ddptrace.load.kineto.events import (
    FAR_NS,
    NO_CORRELATION,
    Category,
    CollectiveArgs,
    FileFacts,
    Ints,
    KinetoEvents,
    Lane,
)
from ddptrace.load.kineto.flops import COUNTED, OperatorFlops, flops_of
from ddptrace.load.kineto.scan_library import scan_library
from ddptrace.load.kineto.scanner import NAMES_COLLECTIVE, ODD_ARGS, Scanner
from ddptrace.load.kineto.source import NotATrace
from ddptrace.load.kineto.stream import Event
from ddptrace.load.kineto.text import time_column

CATEGORIES: Final = {
    "cpu_op": Category.OP, "operator": Category.OP, "user_annotation": Category.ANNOTATION,
    "cuda_runtime": Category.RUNTIME, "cuda_driver": Category.RUNTIME, "runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME, "xpu_driver": Category.RUNTIME, "mtia_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME, "privateuse1_driver": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME, "hip_driver": Category.RUNTIME,  # Kineto itself calls ROCm's cuda_runtime
    "kernel": Category.KERNEL, "gpu_memcpy": Category.MEMORY, "gpu_memset": Category.MEMORY,
    "memcpy": Category.MEMORY, "memset": Category.MEMORY, "python_function": Category.FRAME,
}  # fmt: skip
Scalar = TypeVar("Scalar", bound=np.generic)
COLLECTIVE, FLOPS = 1, 2
MOST_EVENTS: Final = 100_000_000  # a trace of 1 GB has some 4 million
LINKED: Final = np.array([kind in (Category.RUNTIME, Category.KERNEL, Category.MEMORY) for kind in Category])


class _Kinds(dict[str | None, int]):
    """The category of each spelling of one; -1 where it is not kept."""

    def __missing__(self, key: str | None) -> int:
        self[key] = kind = int(CATEGORIES.get((key or "").lower(), -1))
        return kind


class _Names(dict[Any, int]):
    """Numbers names in the order in which they are first seen. A name may be written as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, int] = {}
        self.tells: list[int] = []  # what the arguments of events so named tell: COLLECTIVE, FLOPS or nothing

    def __missing__(self, key: int | float | str | None) -> int:
        text = "" if key is None else str(key)
        self[key] = number = self.texts.setdefault(text, len(self.texts))
        if number == len(self.tells):
            self.tells.append(COLLECTIVE if is_named_as_collective(text) else FLOPS if text in COUNTED else 0)
        return number


class _Lanes(dict[tuple[Any, Any], int]):
    """Numbers pairs of process and thread. 7, 7.0 and "7" are the same thread."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[tuple[str, str], int] = {}

    def __missing__(self, key: tuple[Any, Any]) -> int:
        self[key] = number = self.texts.setdefault((_id_text(key[0]), _id_text(key[1])), len(self.texts))
        return number


def _id_text(value: int | float | str | None) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Columns of the kept events of one batch, in the order of the file."""

    category: NDArray[np.uint8]
    name: NDArray[np.int32]
    lane: NDArray[np.int32]
    begin: Ints  # as written, without the file's base
    length: Ints
    correlation: Ints
    is_collective: NDArray[np.bool_]
    readable: NDArray[np.bool_]


class Columns:
    """What the events of a file amount to, as far as they were added."""

    def __init__(self) -> None:
        self._kinds = _Kinds()
        self.restart()

    def restart(self) -> None:
        """Forget all events: the file replaces them by others."""
        self.unreadable = 0  # events of a kept category that had to be left out
        self._names = _Names()
        self._lanes = _Lanes()
        self._scanner = _scanner()
        self._scanned_names = np.empty(0, np.int32)  # our numbers, by those of the scanner
        self._scanned_lanes = np.empty(0, np.int32)
        self._threads: dict[tuple[str, str], str] = {}
        self._batches: list[_Batch] = []
        self._collectives: dict[int, CollectiveArgs] = {}  # by row, in the order of the file, as are the next two
        self._nbytes: dict[int, int] = {}
        self._flops: dict[int, OperatorFlops] = {}
        self._same: dict[OperatorFlops, OperatorFlops] = {}  # each once: a model has few shapes
        self._count = 0

    @property
    def is_compiled(self) -> bool:
        """Whether there is a compiled scanner to ask."""
        return self._scanner is not None

    def add(self, events: Sequence[Event]) -> None:
        """Keep what some analysis asks for. Raises NotATrace where there are more than any trace has."""
        kept = self._kept(events)
        begin, begins = time_column([event.ts for event in kept])
        length, lengths = time_column([event.dur for event in kept])
        good = begins & lengths
        if not good.all():
            kept = [event for event, is_good in zip(kept, good.tolist(), strict=True) if is_good]
            begin, length = begin[good], length[good]
            self.unreadable += len(good) - len(kept)
        if kept:
            self._add_timed(kept, begin, np.maximum(length, 0))

    def scan(self, text: bytearray, begin: int, end: int) -> int | None:
        """Keep the same of the events that stand between these places of a text, and give their number; None where the
        scanner does not take them in, and `add` has to. Raises NotATrace as `add` does."""
        found = self._scanner.scan(text, begin, end) if self._scanner is not None else None
        if found is None:
            return None
        self._name_threads(found.metadata)
        self._scanned_names = np.append(self._scanned_names, _numbers(self._names, found.names))
        self._scanned_lanes = np.append(self._scanned_lanes, _numbers(self._lanes, found.lanes))
        if len(found.rows):
            self._add_rows(found.rows, memoryview(text)[begin:])
        return found.seen

    def _kept(self, events: Sequence[Event]) -> list[Event]:
        kinds, phases = self._kinds, [event.ph for event in events]
        if "M" in phases:
            self._name_threads(event for event, phase in zip(events, phases, strict=True) if phase == "M")
        return [event for event, phase in zip(events, phases, strict=True) if phase == "X" and kinds[event.cat] >= 0]

    def _name_threads(self, metadata: Iterable[Event]) -> None:
        for event in metadata:
            if event.name == "thread_name":
                self._threads[_id_text(event.pid), _id_text(event.tid)] = thread_name(event.args)

    def _add_timed(self, kept: list[Event], begin: Ints, length: Ints) -> None:
        kinds, names, lanes = self._kinds, self._names, self._lanes
        category = np.fromiter([kinds[event.cat] for event in kept], np.uint8)
        name = np.fromiter([names[event.name] for event in kept], np.int32)
        lane = np.fromiter([lanes[event.pid, event.tid] for event in kept], np.int32)
        asked = np.flatnonzero(LINKED[category] | (self._told(name) > 0))
        args = self._read_args([kept[row].args for row in asked.tolist()], asked, category, name)
        correlation = np.full(len(kept), NO_CORRELATION)
        correlation[asked] = args.correlation
        self._append(category, name, lane, begin, length, correlation, asked, args)

    def _add_rows(self, rows: NDArray[Any], part: memoryview) -> None:
        """Rows of the scanner, whose arguments stand in `part`."""
        category, name = rows["category"].copy(), self._scanned_names[rows["name"]]
        told, linked = self._told(name), LINKED[category]
        asked = np.flatnonzero((told > 0) | (linked & (rows["flags"] & (ODD_ARGS | NAMES_COLLECTIVE) > 0)))
        spans = zip(rows["args_begin"][asked].tolist(), rows["args_end"][asked].tolist(), strict=True)
        args = self._read_args([bytes(part[begin:end]) or b"null" for begin, end in spans], asked, category, name)
        correlation = np.where(linked, rows["correlation"], NO_CORRELATION)
        correlation[asked] = args.correlation
        nbytes = np.where(category == Category.MEMORY, rows["nbytes"], -1)
        nbytes[asked] = -1
        for row in np.flatnonzero(nbytes >= 0).tolist():
            self._nbytes[self._count + row] = int(nbytes[row])
        lane = self._scanned_lanes[rows["lane"]]
        self._append(category, name, lane, rows["begin"].copy(), rows["length"].copy(), correlation, asked, args)

    def _append(
        self,
        category: NDArray[np.uint8],
        name: NDArray[np.int32],
        lane: NDArray[np.int32],
        begin: Ints,
        length: Ints,
        correlation: Ints,
        asked: Ints,
        args: ReadArgs,
    ) -> None:
        is_collective = _spread(args.is_collective, asked, len(name), False)
        readable = _spread(args.readable, asked, len(name), True)
        self._batches.append(_Batch(category, name, lane, begin, length, correlation, is_collective, readable))
        self._count += len(name)
        if self._count > MOST_EVENTS:
            raise NotATrace(f"it has more than {MOST_EVENTS:,} events, as no trace does")

    def _told(self, name: NDArray[np.int32]) -> NDArray[np.uint8]:
        """What the arguments of each event tell, by its name."""
        told: NDArray[np.uint8] = np.array(self._names.tells, np.uint8)[name]
        return told

    def _read_args(
        self, given: Sequence[bytes | msgspec.Raw], asked: Ints, category: NDArray[np.uint8], name: NDArray[np.int32]
    ) -> ReadArgs:
        """Read the arguments that are `given` of the rows `asked`, and keep what they say. Only those of device work,
        collectives and operators that can be counted are looked at."""
        tells, texts = self._told(name[asked]), list(self._names.texts)
        args = read_args(given)
        for at in np.flatnonzero(args.is_collective | (tells == COLLECTIVE)).tolist():
            row = int(asked[at])
            said = said_of_collective(args.of[at], texts[name[row]])
            if said is not None:
                self._collectives[self._count + row] = said
        for at in np.flatnonzero(tells == FLOPS).tolist():
            row, of_row = int(asked[at]), args.of[at]
            flops = flops_of(texts[name[row]], of_row.dims, of_row.types)
            self._flops[self._count + row] = self._same.setdefault(flops, flops)
        for at in np.flatnonzero(category[asked] == Category.MEMORY).tolist():
            nbytes = count(args.of[at].nbytes)
            if nbytes is not None:
                self._nbytes[self._count + int(asked[at])] = nbytes
        return args

    def finish(self, base_ns: int, facts: FileFacts) -> KinetoEvents:
        """All events in order of begin, on the Unix clock. Those beyond any clock count as unreadable."""
        whole = _joined(self._batches)
        begin = whole.begin + base_ns  # both stay below FAR_NS, so that the sum fits
        near = whole.readable & (np.abs(begin) < FAR_NS)
        end = np.where(near, begin, 0) + whole.length
        rows = np.flatnonzero(near & (end < FAR_NS))
        self.unreadable += len(begin) - len(rows)
        order = rows[np.argsort(begin[rows], kind="stable")]
        return KinetoEvents(
            whole.category[order],
            whole.name[order].astype(np.int64),
            whole.lane[order].astype(np.int64),
            begin[order],
            end[order],
            whole.correlation[order],
            whole.is_collective[order],
            tuple(self._names.texts),
            tuple(Lane(pid, tid, self._threads.get((pid, tid), "")) for pid, tid in self._lanes.texts),
            facts,
            *(_at_positions(told, order, len(begin)) for told in (self._collectives, self._nbytes, self._flops)),
        )


def _scanner() -> Scanner | None:
    library = scan_library()
    kinds = {name: int(kind) for name, kind in CATEGORIES.items()}
    return None if library is None else Scanner(library, int.from_bytes(os.urandom(8)), kinds)


def _numbers(table: Mapping[Any, int], keys: Sequence[Any]) -> NDArray[np.int32]:
    return np.fromiter([table[key] for key in keys], np.int32)


def _at_positions(told: Mapping[int, Any], order: Ints, rows: int) -> dict[int, Any]:
    """By position in `order` instead of by row."""
    position = np.full(rows, -1)
    position[order] = np.arange(len(order))
    at = {int(position[row]): said for row, said in told.items()}
    return {position: at[position] for position in sorted(at) if position >= 0}


def _spread(values: NDArray[Scalar], rows: Ints, count: int, other: object) -> NDArray[Scalar]:
    """A column of `count` that holds the values in these rows and `other` elsewhere."""
    column = np.full(count, other, values.dtype)
    column[rows] = values
    return column


def _joined(batches: list[_Batch]) -> _Batch:
    empty = _Batch(
        np.empty(0, np.uint8),
        np.empty(0, np.int32),
        np.empty(0, np.int32),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.bool_),
        np.empty(0, np.bool_),
    )
    columns = [[getattr(batch, name) for batch in (empty, *batches)] for name in _Batch.__slots__]
    return _Batch(*(np.concatenate(parts) for parts in columns))
