"""Reads from a rank's records what its host did to it. A record that cannot be true is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from ddptrace.load.records.events import BEGIN, END, FAR_NS, FLAGS, NAME, A, B, C, D, Row
from ddptrace.load.records.kept import Kept
from ddptrace.load.tables import GcPause, HostLoad, HostMark, LinkSample, Pulse, Throttle
from ddptrace.schema import Kind, Phase

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
