"""What the keeper's thread looks at now and then: network links, a processor quota, and where a training stands that
has recorded nothing for a while.

The training thread may be asleep, blocked, or busy in one place:

records   P P C W S ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
looks      │         │         │ pulse   │ pulse         nothing new since the look before, and that is some time ago
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from ddptrace.capture.blind_spots import WITHOUT_LINUX
from ddptrace.capture.host.host_load import Quota
from ddptrace.capture.host.links import Carried, Links
from ddptrace.capture.origins import frames
from ddptrace.capture.steps.finder import StepFinder
from ddptrace.capture.surface import Surface
from ddptrace.record import Recorder
from ddptrace.record.tail import Tail
from ddptrace.schema import Kind

SURFACES: Final = ("links", "quota", "pulse")

QUOTA_PERIOD_S: Final = 2.0
LINKS_PERIOD_S: Final = 10.0
EARLY_S: Final = 0.5
"""Beats of the keeper are not exactly on time: a look this much before its time is made."""

MOST_RATIO: Final = 0.001
"""Largest share of the keeper's time for one kind of look: thousands of connections are read less often."""

MOST_COUNTED: Final = 2**32 - 1

QUIET_NS: Final = 1_500_000_000
"""Silence after which a pulse is recorded. Looks may follow each other closely, so silence between two is not
enough."""

MOST_LINES: Final = 500
"""Lines that get a name, which stays in the records for good. Beyond them, only a line that the thread stays at
does."""

_now = time.perf_counter_ns


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


class Pulse:
    """Looks at the training thread, as `steps` knows it."""

    def __init__(self, recorder: Recorder, steps: StepFinder) -> None:
        self._recorder = recorder
        self._steps = steps
        self._tail = Tail(recorder)
        self._since = _now()  # when something was recorded last
        self._lines: dict[str, int] = {"": 0}
        self._before: set[str] = set()  # lines that the thread was at at the last look

    def look(self) -> None:
        thread, now = self._steps.thread, _now()
        if self._tail.has_news_of(thread.native):
            self._since = now
        elif now - self._since >= QUIET_NS and not self._recorder.is_stuck():
            self._tell(now)

    def _tell(self, now: int) -> None:
        thread, doing = self._steps.thread, self._steps.doing
        site, innermost = _lines_of(sys._current_frames().get(thread.ident))
        at, inner = self._id(site), self._id(innermost)
        self._before = {site, innermost}
        self._recorder.event(Kind.PULSE, doing, at, now, now, self._tail.seq, _processor_ns(thread.native), 0, inner)

    def _id(self, line: str) -> int:
        known = self._lines.get(line)
        if known is None and (len(self._lines) <= MOST_LINES or line in self._before):
            known = self._lines[line] = self._recorder.intern(line)
        return known or 0


def _lines_of(frame: FrameType | None) -> tuple[str, str]:
    """Return the innermost line of the program, and the innermost of all; "" if there is none."""
    innermost = "" if frame is None else frames.site(frame.f_code, frame.f_lineno)
    return frames.program_line(frame), innermost


def _processor_ns(native: int) -> int:
    """Return the processor time of a thread of this process so far; 0 if the system does not report it."""
    try:
        return int(Path(f"/proc/self/task/{native}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
