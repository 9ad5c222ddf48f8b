"""One rank's records with their texts, kind by kind, on the run's time: where every reader of records begins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.tables import Intervals
from ddptrace.record import Records
from ddptrace.schema import CallFlag, Kind

Row = tuple[Any, ...]  # the fields of one EVENT record, in the order of schema.EVENT_DTYPE
KIND, FLAGS, THREAD, NAME, BEGIN, END, A, B, C, D, E, F, G = range(13)
SYNC, NATIVE, PROFILED, DEVICE = map(int, CallFlag)
"""Bits of a call's flags as plain numbers: `&` with a member of the enum takes ten times as long."""

FAR_NS = 10**18
"""No run lasts thirty years: a manifest or record with such a distance from the run's zero is damaged."""
UNIX_MAX_NS = 2**62
"""Largest Unix time of a valid pair: beyond it, differences of instants overflow."""
BESIDE: Final = (
    *(Kind.CLOCK, Kind.PULSE, Kind.LINK, Kind.CGROUP, Kind.LET_GO, Kind.FILE_LET_GO, Kind.NOTE, Kind.DONE),
    *(Kind.DEVICE_CLOCK, Kind.DEVICE_MARK, Kind.DEVICE_CALL, Kind.DEVICE_WAIT),
)
"""Kinds that are recorded while the training itself does nothing."""


class RankEvents:
    """The EVENT records of one rank, with `begin` and `end` since the run's zero. Kinds that a newer minor version has
    added are there too, and no reader asks for them."""

    def __init__(
        self, records: Records, zero_unix_ns: int | None, *, apart_ns: int = 0, until_ns: int | None = None
    ) -> None:
        """Put a rank's records on the run's time.

        Args:
            records: What was read of the rank's files.
            zero_unix_ns: The run's zero; None: the rank's first record.
            apart_ns: How far the rank's clock is ahead, which is taken off all instants.
            until_ns: Last instant of the records to keep; None: keep all.
        """
        self.clock = Clock.of(records.events, zero_unix_ns)
        self.shift_ns = self.clock.shift_ns - apart_ns
        events = self.clock.near(records.events)
        events["begin"] += self.shift_ns
        events["end"] += self.shift_ns
        if until_ns is not None:
            events = events[np.maximum(events["begin"], events["end"]) <= until_ns]
        self.events = events
        self._strings = records.strings

    def of(self, *kinds: Kind) -> NDArray[np.void]:
        """Return the records of these kinds, in the order in which they were written."""
        found: NDArray[np.void] = self.events[np.isin(self.events["kind"], kinds)]
        return found

    def rows(self, *kinds: Kind) -> list[Row]:
        """Return the same records as tuples."""
        rows: list[Row] = self.of(*kinds).tolist()
        return rows

    def text(self, number: int) -> str:
        """Return the text of a string id; "" for 0, and a placeholder for a lost text."""
        return self._strings.get(number, f"lost name {number}" if number else "")

    def described(self, rows: Iterable[Row]) -> Iterator[tuple[Row, dict[str, Any]]]:
        """Yield each record with the JSON object that its text holds; a record whose text was lost is skipped."""
        for row in rows:
            with suppress(ValueError, RecursionError):
                content = json.loads(self.text(row[NAME]))
                if isinstance(content, dict):
                    yield row, content


@dataclass(frozen=True, slots=True)
class Clock:
    """The rank's monotonic clock tied to Unix time, and the run's zero. One offset holds for all records, so that a
    step of the wall clock changes no duration; profiler windows, which hold Unix time, use the pair nearest to them."""

    monotonic: NDArray[np.int64]
    unix: NDArray[np.int64]
    zero_unix_ns: int

    @classmethod
    def of(cls, events: NDArray[np.void], zero_unix_ns: int | None) -> Clock:
        """Without a zero (no manifest), the time of the first record is the zero. Without any pair, Unix time is
        unknown."""
        can_be = (events["a"] > 0) & (events["a"] < UNIX_MAX_NS)
        can_be &= (events["begin"] > -UNIX_MAX_NS) & (events["begin"] < UNIX_MAX_NS)
        pairs = events[(events["kind"] == Kind.CLOCK) & can_be]
        if not len(pairs):
            return cls(np.zeros(1, np.int64), np.zeros(1, np.int64), 0)
        first = int(pairs["a"][0])
        zero = first if zero_unix_ns is None or abs(zero_unix_ns - first) > FAR_NS else zero_unix_ns
        return cls(pairs["begin"].astype(np.int64), pairs["a"].astype(np.int64), zero)

    @property
    def shift_ns(self) -> int:
        """The number to add to a monotonic instant for the time since the run's zero."""
        return int(self.unix[0] - self.monotonic[0]) - self.zero_unix_ns

    @property
    def tie_ns(self) -> int | None:
        """Unix time less the monotonic clock; None without any pair."""
        return int(self.unix[0] - self.monotonic[0]) if self.unix[0] else None

    @property
    def stepped_ns(self) -> int:
        """The largest jump of the wall clock against the monotonic one."""
        offsets = self.unix - self.monotonic
        return int(np.abs(offsets - offsets[0]).max())

    def near(self, events: NDArray[np.void]) -> NDArray[np.void]:
        """Copy the records that can belong to the run; others are damaged. Instants are as recorded."""
        found: NDArray[np.void] = events[np.abs(events["begin"] - self.monotonic[0]) < FAR_NS]
        return found

    def from_unix(self, unix_ns: Intervals) -> Intervals:
        """Convert Unix instants of a short stretch (one profiler window) to instants since the run's zero."""
        nearest = int(np.abs(self.unix - int(np.median(unix_ns))).argmin()) if unix_ns.size else 0
        offset = int(self.unix[nearest] - self.monotonic[nearest])
        return unix_ns + (self.shift_ns - offset)
