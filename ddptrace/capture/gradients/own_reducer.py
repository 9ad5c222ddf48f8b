"""`BucketedDataParallel`, watched through its own reports: one observer for each reducer in use.

reported   backward_begins  gradient_ready..  launching ─── launched     gradient_ready..   wait ── done   backward_ends
recorded                    READY             the c10d call in between                      READY written when backward
                                              is the bucket's: CALL                         has ended

The tap sees the collectives themselves, as all others; the reports say which bucket each one is. Others that the
reducer issues (buffers, its comparison of steps, the map of unused parameters) fall outside launching and launched.
"""

from __future__ import annotations

import sys
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptrace.capture.collectives.calls import Collectives
from ddptrace.capture.gradients.communication_hooks import HookCall, HookRecords
from ddptrace.capture.gradients.reducer_records import ReadyTimes, ReducerRecords, described
from ddptrace.capture.steps.finder import StepFinder
from ddptrace.capture.surface import Surface, ThreadState

if TYPE_CHECKING:
    from ddptrace.reducer import BucketedDataParallel, LayoutMade, ReducerMade

_now = time.perf_counter_ns

HOME = "ddptrace.reducer.data_parallel"
SEAT = "ddptrace.trace"


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the session that the observers of all reducers write through."""

    surface: Surface
    records: ReducerRecords
    hooks: HookRecords
    collectives: Collectives
    steps: StepFinder
    thread: ThreadState


class OwnReducerWatch:
    """Attaches the observers and takes them off again: each at the first backward after its reducer was made."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._watched: weakref.WeakKeyDictionary[BucketedDataParallel, BucketWatch] = weakref.WeakKeyDictionary()

    def backward_begins(self) -> None:
        for watch in self._watched.values() if self._watched else ():  # most programs have none, and views cost
            watch.ready.clear()
        for wrapper in _in_use():
            if wrapper not in self._watched:
                watch = self._watched[wrapper] = BucketWatch(self._parts.records.number(), self._parts)
                wrapper.observe(watch, seat=SEAT)

    def backward_ends(self, backward: int) -> None:
        for watch in self._watched.values() if self._watched else ():
            self._parts.records.ready(watch.number, backward, watch.ready)
        self._parts.thread.bucket = self._parts.thread.hook = 0  # a hook or launch that raised reports no end

    def detach(self) -> None:
        for wrapper in list(self._watched):
            wrapper.observe(None, seat=SEAT)


class BucketWatch:
    """The `BucketObserver` of one reducer. It holds nothing of the model: that can be dropped during the trace."""

    def __init__(self, number: int, parts: Parts) -> None:
        self.number = number
        self.ready = ReadyTimes(0)  # of this backward
        self._parts, self._surface, self._thread = parts, parts.surface, parts.thread
        self._collectives = parts.collectives
        self._dtypes: list[str] = []  # by parameter
        self._on_device: list[bool] = []
        self._buckets: tuple[tuple[int, ...], ...] = ()
        self._nbytes = 0  # of the bucket that is being launched
        self._hook: HookCall | None = None  # the call that reduces it; once there is a hook, all buckets go to it

    def reducer_made(self, made: ReducerMade) -> None:
        self.ready = ReadyTimes(len(made.parameters))
        self._surface.call(self._describe, made)

    def layout_made(self, made: LayoutMade) -> None:
        self._buckets = made.buckets
        self._surface.call(self._write_layout, made)

    def gradient_ready(self, parameter: int) -> None:
        if self._surface.live:
            self.ready.times[parameter] = _now()
            self._collectives.reducer = self.number

    def bucket_launching(self, bucket: int, nbytes: int) -> None:
        if self._surface.live:
            self._nbytes, self._thread.bucket = nbytes, self.number

    def hook_begins(self, bucket: int, hook: str) -> None:
        if self._surface.live:
            self._thread.bucket = 0  # what is issued from here on is the hook's
            self._hook = self._parts.hooks.begins(hook)

    def hook_ends(self, bucket: int) -> None:
        if self._hook is not None and self._surface.live:
            self._surface.call(self._write_hook, self._hook, self._parts.hooks.ends(), bucket)

    def bucket_launched(self, bucket: int, sent: object) -> None:
        self._thread.bucket = 0
        if self._hook is not None and self._surface.live:
            self._surface.call(self._follow_hook, self._hook, sent)

    def backward_begins(self, backward: int) -> None:
        self.ready.clear()  # gradients of a backward that did not go through torch's entry

    def wait_begins(self, bucket: int) -> None:
        """Of the host, waits are recorded where they happen, of all collectives alike."""
        if self._collectives.device is not None:
            self._collectives.device.wait_begins()

    def bucket_done(self, bucket: int) -> None:
        """Nothing: when the communication was over is known by then."""

    def backward_ends(self, backward: int) -> None:
        """Nothing: torch's own backward is not over yet."""

    def _describe(self, made: ReducerMade) -> None:
        parameters = described(zip(made.names, made.parameters, strict=True))
        self._dtypes = [parameter["dtype"] for parameter in parameters]
        self._on_device = [not parameter.is_cpu for parameter in made.parameters]
        content = {
            "kind": "BucketedDataParallel",
            "module": made.module,
            "group": made.group,
            "bucket_cap_nbytes": made.caps_nbytes[-1],
            "parameters": parameters,
        }
        self._parts.records.reducer(self.number, content)

    def _write_layout(self, made: LayoutMade) -> None:
        since = self._parts.steps.backwards  # made between two backwards, or observed as this one begins
        self._parts.records.layout(self.number, made.layout, made.buckets, from_backward=since)

    def _follow_hook(self, hook: HookCall, sent: object) -> None:
        self._parts.hooks.follow(hook, sent, on_device=any(self._on_device))

    def _write_hook(self, hook: HookCall, end: int, bucket: int) -> None:
        dtype = self._dtypes[self._buckets[bucket][0]]
        self._parts.hooks.write(hook, end, self.number, bucket, self._nbytes, dtype)


def _in_use() -> list[BucketedDataParallel]:
    """Return every wrapper in use, without importing their module into a program that has none."""
    alive = getattr(sys.modules.get(HOME), "alive", None)
    return [] if alive is None else alive()
