"""A rank's clock tied to the run's zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.tables import Intervals
from ddptrace.schema import Kind

FAR_NS = 10**18
"""No run is thirty years from its zero: a manifest or record that says so is damaged."""
UNIX_MAX_NS = 2**62
"""Of a pair that can be: beyond it differences of instants overflow."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The rank's monotonic clock tied to Unix time, and the run's zero. One offset holds for all records, so that a
    stepped wall clock bends no duration; profiler windows, which tell Unix time, use the pair nearest to them."""

    monotonic: NDArray[np.int64]
    unix: NDArray[np.int64]
    zero_unix_ns: int

    @classmethod
    def of(cls, events: NDArray[np.void], zero_unix_ns: int | None) -> Clock:
        """Without a zero (no manifest), the first record's time is it. Without any pair, Unix time is not known."""
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
        """What turns a monotonic instant into one since the run's zero."""
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
        """Copy the records that can be of the run; others are damaged. Instants are as recorded."""
        found: NDArray[np.void] = events[np.abs(events["begin"] - self.monotonic[0]) < FAR_NS]
        return found

    def from_unix(self, unix_ns: Intervals) -> Intervals:
        """Unix instants of a short stretch (one profiler window) as instants since the run's zero."""
        nearest = int(np.abs(self.unix - int(np.median(unix_ns))).argmin()) if unix_ns.size else 0
        offset = int(self.unix[nearest] - self.monotonic[nearest])
        return unix_ns + (self.shift_ns - offset)
