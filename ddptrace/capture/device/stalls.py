"""When the program launched nothing on the device, although the device had run out of work: it fetched a batch, or all
threads of the process stood still (they slept, or waited for a file, a lock, a peer).

host      ███ launches ████┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄███ launches
looks     ·         ·         ·P······················           P: an event put on the compute stream
device    ░░░░ █ ██ █ ████ ██▒▒▒▒─────────────────────█ ██       ─: known to be idle, from where it came to P

Whether the process stands still, its processor time says: launching takes some. While the device has not come past the
last mark, a look only finds that out.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import UserDict
from collections.abc import Iterable
from itertools import islice
from typing import Final

import torch

from ddptrace.capture.device.timed_events import DeviceTimer, Still

_now = time.perf_counter_ns

LOOK_EVERY_S: Final = 0.01
LOOK_AGAIN_S: Final = 0.0005
LAUNCH_NS: Final = 2_000
"""Processor time that a launch takes at least."""
FOLLOW_S: Final = 0.001
FOLLOW_RATIO: Final = 0.02
"""Of how long it has stood still: after that much more it is asked again."""
AT_WORK_RATIO: Final = 0.9
"""Of the time since the last look: a process that ran for so long does not stand still."""
MOST_ITEMS: Final = 8
"""Parts of a batch that are looked at."""


class StallWatch:
    """Looks on a thread of its own, from `start()` to `close()`."""

    def __init__(self, timer: DeviceTimer) -> None:
        self._timer = timer
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddptrace-stalls", daemon=True)

    def start(self) -> None:
        with contextlib.suppress(RuntimeError):  # the system gives no more threads
            self._thread.start()

    def close(self) -> None:
        """End the thread; what the process launches nothing in ends here."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1)

    def _run(self) -> None:
        with self._timer.selected():
            self._watch()

    def _watch(self) -> None:
        at, used = _now(), _used_ns()
        while not self._closing.wait(LOOK_EVERY_S):
            (before, used_before), (at, used) = (at, used), (_now(), _used_ns())
            if used - used_before < AT_WORK_RATIO * (at - before):
                while self._timer.has_caught_up() and self._stood_still():
                    pass

    def _stood_still(self) -> bool:
        """Tell the timer for how long the process stands still from now on. Return whether it does."""
        used = _used_ns()
        if self._closing.wait(LOOK_AGAIN_S) or _used_ns() - used > LAUNCH_NS:
            return False
        still = self._timer.probe()
        if still is None:
            return False
        until, used = still.placed, _used_ns()  # a thread that has launched something meanwhile runs on, and is seen
        while not self._closing.wait(max(FOLLOW_S, FOLLOW_RATIO * (until - still.placed) / 1e9)):
            at = _now()
            before, used = used, _used_ns()
            if used - before > LAUNCH_NS:
                break
            until = at
        self._timer.stood_still(still, until)
        return True


def _used_ns() -> int:
    """Return how much processor time the other threads of the process have used."""
    return time.process_time_ns() - time.thread_time_ns()


class Fetches:
    """What a fetch of a batch tells. A batch with a tensor on a device, or of a type that is not known, may have been
    made by launches."""

    def __init__(self, timer: DeviceTimer) -> None:
        self._timer = timer
        self._still: Still | None = None

    def begins(self) -> None:
        if self._still is None:  # else a dataset of the loader has a loader of its own
            self._still = self._timer.probe()

    def ends(self, batch: object) -> None:
        still, self._still = self._still, None
        if still is not None:
            self._timer.stood_still(still, _now() if is_on_host(batch) else still.placed)


def is_on_host(batch: object) -> bool:
    """Whether what was fetched lies in the host's memory, as far as its first parts tell."""
    if isinstance(batch, torch.Tensor):
        return batch.device.type == "cpu"
    if isinstance(batch, str | bytes | int | float | None):
        return True
    parts = _parts(batch)
    return parts is not None and all(is_on_host(one) for one in islice(parts, MOST_ITEMS))


def _parts(batch: object) -> Iterable[object] | None:
    """Return what a container holds, without running a method that the program may have overridden."""
    if isinstance(batch, UserDict):
        batch = vars(batch).get("data")
    if isinstance(batch, dict):
        return dict.values(batch)
    if isinstance(batch, list):
        return list.__iter__(batch)
    return tuple.__iter__(batch) if isinstance(batch, tuple) else None
