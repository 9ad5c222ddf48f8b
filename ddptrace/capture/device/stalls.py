"""When the program launched nothing on the device, although the device had run out of work: it fetched a batch, or all
threads of the process stood still (they slept, or waited for a file, a lock, a peer).

host      ███ launches ████┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄███ launches
looks     ·         ·         ·P······················           P: an event put on the compute stream
device    ░░░░ █ ██ █ ████ ██▒▒▒▒─────────────────────█ ██       ─: known to be idle, from where it came to P

Whether the process stands still, the processor time of its threads says: launching takes some. While the device has not
come past the last mark, a look only finds that out.

The processor time of the process is only a first hint: of a thread that runs, Linux may have counted nothing since the
last tick, 1 to 10 ms ago. Asked for one thread, it counts up to now. So all threads are asked, one by one.
"""

from __future__ import annotations

import contextlib
import os
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
THREADS_CLOCK: Final = 0b110
"""Of Linux' numbers of clocks: of one thread, as the scheduler counts. The bits above are the thread's, inverted."""
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
        until, after = still.placed, used_by_thread()  # one that has launched something meanwhile runs on, and is seen
        while not self._closing.wait(max(FOLLOW_S, FOLLOW_RATIO * (until - still.placed) / 1e9)):
            at = _now()
            before, after = after, used_by_thread()
            if has_run(before, after):
                break
            until = at
        self._timer.stood_still(still, until)
        return True


def _used_ns() -> int:
    """Return how much processor time the other threads of the process have used, as of the last tick or later."""
    return time.process_time_ns() - time.thread_time_ns()


def used_by_thread() -> dict[int, int]:
    """Return how much processor time, in ns, each other thread of the process has used up to now, by the system's
    number of the thread; nothing where the system does not list them."""
    own, used = threading.get_native_id(), {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/task"):  # noqa: PTH208 (a Path for each thread takes longer than the rest)
            thread = int(name)
            if thread != own:
                with contextlib.suppress(OSError):  # it has ended
                    used[thread] = time.clock_gettime_ns(~thread << 3 | THREADS_CLOCK)
    return used


def has_run(before: dict[int, int], after: dict[int, int]) -> bool:
    """Whether any thread may have launched something between two looks. One that has begun or ended has run."""
    return not after or before.keys() != after.keys() or sum(after.values()) - sum(before.values()) > LAUNCH_NS


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
