"""What the keeper's thread looks at now and then: network links, a processor quota, and where a training stands that
has recorded nothing for a while."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from ddptrace.capture.blind_spots import WITHOUT_LINUX
from ddptrace.capture.host.links import Carried, Links
from ddptrace.capture.host.pulse import Pulse
from ddptrace.capture.host.quota import Quota
from ddptrace.capture.steps.finder import StepFinder
from ddptrace.capture.surface import Surface
from ddptrace.record import Recorder
from ddptrace.schema import Kind

SURFACES: Final = ("links", "quota", "pulse")

QUOTA_PERIOD_S: Final = 2.0
LINKS_PERIOD_S: Final = 10.0
EARLY_S: Final = 0.5
"""Beats of the keeper are not exactly on time: a look this much before its time is made."""

MOST_RATIO: Final = 0.001
"""Largest share of the keeper's time for one kind of look: thousands of connections are read less often."""

MOST_COUNTED: Final = 2**32 - 1


class Looks:
    """Looks, each under its own surface. `blind_spots`: what this system does not report."""

    def __init__(self, recorder: Recorder, surfaces: Mapping[str, Surface], steps: StepFinder) -> None:
        self._recorder = recorder
        self._links: Links | None = None
        self._quota: Quota | None = None
        self.blind_spots: tuple[str, ...] = (WITHOUT_LINUX,)
        with contextlib.suppress(OSError):
            if sys.platform == "linux":
                self._links, self._quota, self.blind_spots = Links(), Quota(), ()
        self._look_at_links = surfaces["links"].guarded(self._tell_links)
        self._look_at_links_in_short = surfaces["links"].guarded(self._tell_links_in_short)
        self._look_at_quota = surfaces["quota"].guarded(self._tell_quota)
        self._pulse = surfaces["pulse"].guarded(Pulse(recorder, steps).look)

    def chores(self) -> list[Callable[[], None]]:
        """Return what to call at each beat of the keeper."""
        return [self._pulse, _seldom(self._look_at_quota, QUOTA_PERIOD_S), _seldom(self._look_at_links, LINKS_PERIOD_S)]

    def first(self) -> None:
        """Look at the start of the trace: counters hold the sums so far."""
        self._look_at_quota()

    def last(self) -> None:
        """Look at the end, on the training thread, which must not wait for thousands of connections."""
        self._look_at_quota()
        self._look_at_links_in_short()

    def _tell_links(self) -> None:
        if self._links is not None:
            self._tell_carried(self._links.look)

    def _tell_links_in_short(self) -> None:
        if self._links is not None:
            self._tell_carried(self._links.look_in_short)

    def _tell_carried(self, look: Callable[[], Mapping[str, Carried]]) -> None:
        if self._recorder.is_stuck():
            return
        try:
            carried, at = look(), time.perf_counter_ns()
        except OSError:  # the program has no file descriptor left
            return
        for pair, link in sorted(carried.items()):
            self._recorder.event(
                Kind.LINK,
                0,
                self._recorder.intern(pair),
                at,
                at,
                link.sent_nbytes,
                link.busy_ns,
                link.rtt_min_ns,
                min(link.resent, MOST_COUNTED),
            )

    def _tell_quota(self) -> None:
        if self._quota is None or self._recorder.is_stuck():
            return
        try:
            held, at = self._quota.look(), time.perf_counter_ns()
        except OSError:  # the group was removed meanwhile, or as with links
            return
        if held is not None:
            self._recorder.event(Kind.CGROUP, 0, 0, at, at, held.held_ns, held.periods, held.quota_ns)


def _seldom(look: Callable[[], None], period_s: float) -> Callable[[], None]:
    due = -period_s

    def now_and_then() -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            begin = time.thread_time()
            look()
            due = now + max(period_s - EARLY_S, (time.thread_time() - begin) / MOST_RATIO)

    return now_and_then
