"""Reads what a rank described of itself (groups, reducers, bucket layouts) and what its host did to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import numpy as np

from ddptrace.load.records.kept import Kept
from ddptrace.load.records.rank_events import BEGIN, END, FAR_NS, FLAGS, NAME, A, B, C, D, Row
from ddptrace.load.tables import (
    MOST_RANKS,
    GcPause,
    Group,
    HostLoad,
    HostMark,
    Layout,
    LinkSample,
    Parameter,
    Pulse,
    Reducer,
    Throttle,
)
from ddptrace.schema import Kind, Phase

T = TypeVar("T")
Content = dict[str, Any]
MOST_THREADS = 1024  # of one group's backend; a record that says more is damaged


def groups(described: Iterable[Content]) -> tuple[Group, ...]:
    return tuple(each(described, _group))


def sizes(described: Iterable[Content]) -> dict[str, int]:
    """Return the sizes, by name, of groups whose ranks are not known."""
    contents = [content for content in described if not content.get("ranks")]
    return dict(each(contents, lambda content: (str(content["name"]), int(content["size"]))))


def reducers(described: Iterable[Content], layouts: Iterable[Content]) -> tuple[Reducer, ...]:
    """Return the reducers with their layouts in the order of use."""
    of: dict[int, list[Layout]] = defaultdict(list)
    for number, layout in each(layouts, lambda content: (int(content["reducer"]), _layout(content))):
        of[number].append(layout)
    return tuple(each(described, lambda content: _reducer(content, of)))


def each(contents: Iterable[Content], make: Callable[[Content], T]) -> list[T]:
    """Build one object of each description, and skip those without the required fields (damaged or changed by
    others)."""
    made: list[T] = []
    for content in contents:
        try:
            made.append(make(content))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return made


def _group(content: Content) -> Group:
    threads, ranks = content.get("threads"), tuple(int(rank) for rank in content["ranks"])
    if not all(0 <= rank < MOST_RANKS for rank in ranks):
        raise ValueError
    return Group(
        str(content["name"]),
        ranks,
        str(content["backend"]),
        min(int(threads), MOST_THREADS) if isinstance(threads, int) and threads > 0 else None,
        str(content.get("description", "")),
    )


def _layout(content: Content) -> Layout:
    buckets = tuple(tuple(int(i) for i in bucket) for bucket in content["buckets"])
    return Layout(int(content["layout"]), int(content["from_backward"]), buckets)


def _reducer(content: Content, layouts: Mapping[int, list[Layout]]) -> Reducer:
    number, cap = int(content["reducer"]), content.get("bucket_cap_nbytes")
    parameters = tuple(
        Parameter(str(p["name"]), int(p["numel"]), int(p["nbytes"]), str(p["dtype"])) for p in content["parameters"]
    )
    inside = tuple(
        layout
        for layout in sorted(layouts.get(number, []), key=lambda layout: layout.from_backward)
        if all(0 <= i < len(parameters) for bucket in layout.buckets for i in bucket)
    )
    return Reducer(
        number,
        str(content["kind"]),
        str(content["module"]),
        str(content["group"]),
        None if cap is None else int(cap),
        parameters,
        inside,
    )


# What its host did to it ----------------------------------------------------------------------------------------------


Rows = Callable[[Kind], list[Row]]

LATE_NS: Final = 10**9
"""Tolerance: a thread that waits for a processor while it reads its times reads them up to this much too large."""
GENERATIONS: Final = range(256)


def host_load(rows: Rows, text: Callable[[int], str], kept: Kept) -> HostLoad:
    """`rows`: records of a kind, in order of begin. Those in partial steps are left out; running counts stay."""
    return HostLoad(
        marks=tuple(_marks(_seen(rows(Kind.HOST), kept))),
        collections=tuple(
            GcPause(row[BEGIN], row[END], row[A])
            for row in _seen(rows(Kind.GC), kept)
            if _is_span(row) and row[A] in GENERATIONS
        ),
        throttles=tuple(
            Throttle(row[BEGIN], row[A], row[C] / 1e9)
            for row in rows(Kind.CGROUP)
            if 0 <= row[A] < FAR_NS and 0 < row[C] < FAR_NS
        ),
        links=tuple(_links(rows(Kind.LINK), text)),
        pulses=tuple(pulse_of(row, text) for row in rows(Kind.PULSE)),
    )


def clock_name(meta: Mapping[str, Any]) -> str:
    """Return the identity of the clock that a rank reads; empty if its meta.json does not name it."""
    told = [meta.get(name) for name in ("boot_id", "time_namespace")]
    if not isinstance(told[0], str) or not told[0]:
        return ""
    return " ".join(part for part in told if isinstance(part, str))


def _seen(rows: list[Row], kept: Kept) -> Iterator[Row]:
    """Decide by the middle: a span between two ends of steps may begin a moment before its step."""
    middles = np.array([row[BEGIN] + (row[END] - row[BEGIN]) // 2 for row in rows], np.int64)
    return (row for row, is_seen in zip(rows, kept.seen(middles).tolist(), strict=True) if is_seen)


def _is_span(row: Row) -> bool:
    return bool(0 <= row[END] - row[BEGIN] < FAR_NS)


def _marks(rows: Iterator[Row]) -> Iterator[HostMark]:
    for row in rows:
        most = row[END] - row[BEGIN] + LATE_NS
        if _is_span(row) and 0 <= row[A] <= most and 0 <= row[B] <= most and row[C] >= 0:
            yield HostMark(row[BEGIN], row[END], row[B], row[A], row[C])


def _links(rows: list[Row], text: Callable[[int], str]) -> Iterator[LinkSample]:
    for row in rows:
        own, is_link, peer = text(row[NAME]).partition(">")
        if is_link and all(0 <= count < FAR_NS for count in row[A : C + 1]):
            yield LinkSample(row[BEGIN], own, peer, row[A], row[B], row[C], row[D])


def pulse_of(row: Row, text: Callable[[int], str]) -> Pulse:
    """Make a pulse from its record. `text`: what a string id stands for."""
    return Pulse(row[BEGIN], phase_of(row[FLAGS]), text(row[NAME]), text(row[D]), row[A], max(row[B], 0))


def phase_of(number: int) -> Phase | None:
    """The phase of this number; None for a phase that a newer version has added."""
    return Phase(number) if number in set(Phase) else None
