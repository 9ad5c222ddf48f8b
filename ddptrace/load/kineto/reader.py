"""One Kineto file (torch.profiler's own format) as columns. Nothing here knows what an event means to us.

Batches of events become columns, small while they grow, and sorted by begin at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddptrace.errors import RunDirectoryError
from ddptrace.load.kineto import cache as kineto_cache
from ddptrace.load.kineto.args import is_named_as_collective, read_args, said_of_collective, thread_name
from ddptrace.load.kineto.events import FAR_NS, Category, CollectiveArgs, FileFacts, Ints, KinetoEvents, Lane
from ddptrace.load.kineto.source import NotATrace, Source
from ddptrace.load.kineto.stream import Event, EventStream, OutermostKeys, base_in_ruins, base_ns, facts_of, told_by
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
        self.tells: list[bool] = []  # the arguments of events so named tell of a collective

    def __missing__(self, key: int | float | str | None) -> int:
        text = "" if key is None else str(key)
        self[key] = number = self.texts.setdefault(text, len(self.texts))
        if number == len(self.tells):
            self.tells.append(is_named_as_collective(text))
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
        self._threads: dict[tuple[str, str], str] = {}
        self._batches: list[_Batch] = []
        self._collectives: dict[int, CollectiveArgs] = {}  # by row, in the order of the file
        self._count = 0

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
        if self._count > MOST_EVENTS:
            raise NotATrace(f"it has more than {MOST_EVENTS:,} events, as no trace does")

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
        args = self._read_args(kept, category, name)
        self._batches.append(_Batch(category, name, lane, begin, length, *args))
        self._count += len(kept)

    def _read_args(
        self, kept: list[Event], category: NDArray[np.uint8], name: NDArray[np.int32]
    ) -> tuple[Ints, NDArray[np.bool_], NDArray[np.bool_]]:
        """Correlation, is_collective and readable. Only the arguments of device work and collectives are looked at."""
        tells = np.array(self._names.tells, np.bool_)[name]
        asked = np.flatnonzero(LINKED[category] | tells)
        texts = list(self._names.texts)
        args = read_args([kept[row].args for row in asked.tolist()])
        for at in np.flatnonzero(args.is_collective | tells[asked]).tolist():
            row = int(asked[at])
            said = said_of_collective(args.of[at], texts[name[row]])
            if said is not None:
                self._collectives[self._count + row] = said
        return (
            _spread(args.correlation, asked, len(kept), -1),
            _spread(args.is_collective, asked, len(kept), False),
            _spread(args.readable, asked, len(kept), True),
        )

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
            self._collectives_in(order, len(begin)),
        )

    def _collectives_in(self, order: Ints, count: int) -> dict[int, CollectiveArgs]:
        """By position in `order` instead of by row."""
        position = np.full(count, -1)
        position[order] = np.arange(len(order))
        at = {int(position[row]): said for row, said in self._collectives.items()}
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


def read_kineto(path: Path, cache: Path | None = None) -> KinetoEvents:
    """Read a `.json` or `.json.gz` file; what of it could not be read stands in `facts.damage`.

    `cache` is a folder, made where it is missing, in which the columns are kept for the next time. Raises
    RunDirectoryError where the file cannot be opened, is no Kineto trace, or its packing is damaged.
    """
    try:
        return _read(Source(path)) if cache is None else _read_cached(path, cache)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read ({error.strerror or error}); is it a whole file?") from error
    except NotATrace as error:
        message = f"{path} is not a whole Kineto trace ({error}); record it again or leave it out"
        raise RunDirectoryError(message) from error


def _read_cached(path: Path, cache: Path) -> KinetoEvents:
    key = kineto_cache.key_of(path)
    known = kineto_cache.load(cache, path, key)
    if known is None:
        known = _read(Source(path))
        kineto_cache.store(cache, path, key, known)
    return known


def _read(source: Source) -> KinetoEvents:
    columns = Columns()
    stream = EventStream(columns.add, columns.restart)
    stream.read(source)
    told, base, lost = _surroundings(stream)
    events = columns.finish(base or 0, facts_of(told))
    unreadable = stream.unreadable + columns.unreadable
    damage = _sentence(stream, unreadable, lost or source.cut, base is not None)
    if damage and not stream.seen:
        raise NotATrace(damage)
    return replace(events, facts=replace(events.facts, damage=damage))


def _surroundings(stream: EventStream) -> tuple[OutermostKeys, int | None, bool]:
    """What stands around the events, what times count from, and whether some of it is lost."""
    around, is_list = stream.around.text, stream.around.text.lstrip()[:1] == b"["
    cut = bool(stream.stopped)
    told = told_by(around if is_list or not cut else around + b"}")
    if told is not None:
        return told, base_ns(told), cut or (told.base is not None and base_ns(told) is None)
    head = told_by(around[: stream.around.head_nbytes] + (b"" if is_list else b"}"))
    return head or OutermostKeys(), base_in_ruins(around), True


def _sentence(stream: EventStream, unreadable: int, lost: bool, has_base: bool) -> str | None:
    """What could not be read, as parts of one sentence; None where all could."""
    parts = []
    if stream.stopped:
        parts.append(f"{stream.stopped} after {stream.seen:,} events; the rest is lost")
    elif lost:
        parts.append("the text around its events is incomplete")
    if (stream.stopped or lost) and not has_base:
        parts.append("if baseTimeNanoseconds was lost with it, the times are too early")
    if stream.odd_gaps:
        parts.append("commas between its events are missing, or too many")
    if unreadable:
        parts.append(f"{unreadable:,} of its events could not be read and are left out")
    return "; ".join(parts) or None
