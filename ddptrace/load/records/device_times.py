"""Instants of a device's clock as instants of the run, with a bound of their error.

Each tie says between which two instants of the host an event of the device happened. The middle is taken for the
instant, and half of the distance is its error. Between two ties the offset of the clocks changes evenly, as clocks that
drift do; how far ties in the middle lie from the line through their neighbours tells how true that is.

offset of    ·                                 ·: the middle of a tie, of which loose ones are left out
the clocks     `·..
                   `·....                      the last offset holds after the last tie, the first before the first
                         `·──────
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.records.rank_events import BEGIN, END, FLAGS, NAME, A, B, C, D, Row
from ddptrace.load.tables import CallEvents, DeviceEvents, Intervals, StreamWait
from ddptrace.schema import DeviceMark

UNKNOWN_DRIFT: Final = 100e-6
"""At most, of two clocks: where no two ties tell it."""


@dataclass(frozen=True, slots=True)
class DeviceClock:
    """`device_ns`, in order, and at each of them the offset to the run's time and its error."""

    device_ns: NDArray[np.int64]
    offset_ns: NDArray[np.int64]
    error_ns: NDArray[np.int64]
    bent_ns: int  # how far a tie lies from the line through its neighbours, beyond their errors

    @classmethod
    def of(cls, ties: Sequence[Row]) -> DeviceClock | None:
        """`ties`: DEVICE_CLOCK records. None without any."""
        rows = sorted({(row[A], row[BEGIN], row[END]) for row in ties if row[END] >= row[BEGIN]})
        if not rows:
            return None
        device, begin, end = np.array(rows, np.int64).T
        error = (end - begin + 1) // 2
        tight = _tight(device, error)
        device, error, offset = device[tight], error[tight], (begin + error - device)[tight]
        return cls(device, offset, error, _bent_ns(device, offset, error))

    def at(self, device_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert instants of the device to the run's time."""
        zero = self.offset_ns[0]
        drifted = np.interp(device_ns, self.device_ns, self.offset_ns - zero)
        return np.asarray(device_ns + zero + np.rint(drifted).astype(np.int64), np.int64)

    def error(self, device_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how far `at` may be off."""
        after = np.minimum(np.searchsorted(self.device_ns, device_ns), len(self.device_ns) - 1)
        before = np.maximum(np.searchsorted(self.device_ns, device_ns, side="right") - 1, 0)
        outside = np.maximum(self.device_ns[0] - device_ns, device_ns - self.device_ns[-1]).clip(0)
        found = np.maximum(self.error_ns[before], self.error_ns[after]) + self.bent_ns
        return np.asarray(found + np.ceil(outside * UNKNOWN_DRIFT).astype(np.int64), np.int64)


def _tight(device: NDArray[np.int64], error: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which ties tell more than any other does, whatever the drift since that one."""
    ahead = np.minimum.accumulate(error - UNKNOWN_DRIFT * device) + UNKNOWN_DRIFT * device
    back = np.minimum.accumulate((error + UNKNOWN_DRIFT * device)[::-1])[::-1] - UNKNOWN_DRIFT * device
    return np.asarray(error <= np.minimum(ahead, back) + 1, np.bool_)


def _bent_ns(device: NDArray[np.int64], offset: NDArray[np.int64], error: NDArray[np.int64]) -> int:
    if len(device) < 3:
        return 0
    share = (device[1:-1] - device[:-2]) / np.maximum(device[2:] - device[:-2], 1)
    line = offset[:-2] + share * (offset[2:] - offset[:-2])
    explained = error[1:-1] + np.maximum(error[:-2], error[2:])
    return max(0, int(np.ceil((np.abs(offset[1:-1] - line) - explained).max())))


def device_events(
    ties: Sequence[Row], marks: Iterable[Row], waits: Sequence[StreamWait], name: str
) -> DeviceEvents | None:
    """Return the marks of the compute stream on the run's time; None if the device's clock was never tied to it.
    `waits`: for events."""
    clock = DeviceClock.of(ties)
    if clock is None:
        return None
    known = set(DeviceMark)
    rows = np.array(
        [(row[FLAGS], row[BEGIN], row[A], row[END]) for row in marks if row[FLAGS] in known], np.int64
    ).reshape(-1, 4)
    still = rows[rows[:, 0] == DeviceMark.STILL, 1:]
    still[:, 1] = clock.at(still[:, 1])
    kind, placed, device, _ = rows[rows[:, 0] != DeviceMark.STILL].T
    timed = device != 0
    at, error = np.where(timed, clock.at(device), 0), np.where(timed, clock.error(device), 0)
    stood = np.array([(wait.begin_at_ns, wait.end_at_ns) for wait in waits], np.int64).reshape(-1, 2)
    return DeviceEvents(name, kind.astype(np.uint8), placed, at, int(error.max(initial=0)), stood, still)


def call_events(ties: Sequence[Row], calls: Iterable[Row]) -> Mapping[int, CallEvents]:
    """Return the times of calls on the device, by seq."""
    clock, rows = DeviceClock.of(ties), [(row[A], row[B], row[C], row[D], row[FLAGS]) for row in calls]
    if clock is None or not rows:
        return {}
    seq, ready, end, duration, flags = np.array(rows, np.int64).T
    error = clock.error(np.maximum(ready, end))
    times: Intervals = np.column_stack((seq, clock.at(ready), end, clock.at(end), duration, error, flags))
    return {
        number: CallEvents(ready_at, end_at if is_known else None, took or None, error_ns, bool(of_marks))
        for number, ready_at, is_known, end_at, took, error_ns, of_marks in times.tolist()
    }


def stream_waits(ties: Sequence[Row], waits: Iterable[Row]) -> Mapping[int, tuple[StreamWait, ...]]:
    """Return the waits of streams, by the seq of the call that they wait for; 0 where they wait for an event."""
    clock, rows = DeviceClock.of(ties), [(row[A], row[B], row[C], row[FLAGS]) for row in waits]
    if clock is None or not rows:
        return {}
    seq, before, after, flags = np.array(rows, np.int64).T
    found: dict[int, list[StreamWait]] = {}
    times = np.column_stack((seq, clock.at(before), clock.at(after), flags))
    for number, begin, end, of_marks in times.tolist():
        found.setdefault(number, []).append(StreamWait(begin, end, bool(of_marks)))
    return {number: tuple(those) for number, those in found.items()}


def device_name(ties: Sequence[Row]) -> int:
    """Return the string id of the device's name."""
    return int(ties[0][NAME]) if ties else 0
