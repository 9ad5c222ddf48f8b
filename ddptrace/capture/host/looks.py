"""What the keeper's thread looks at now and then: TCP connections, a processor quota, and where a training stands
still.

A pulse tells where the training thread is, which may be asleep, blocked, or busy in one place:

records   P P C W S ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
looks      │         │         │ pulse   │ pulse         nothing new since the look before, and that is some time ago

Links are what this process's TCP connections have carried so far, by pair of addresses, as Linux counts it. The owners
of the connections (Gloo, NCCL, the program) are not disturbed: each is read through a second descriptor of the same
connection, which is closed at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from ddptrace.capture.host.host_load import Quota
from ddptrace.capture.origins import frames
from ddptrace.capture.steps.finder import StepFinder
from ddptrace.capture.surface import UNSEEN_WITHOUT_LINUX, Surface
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

DESCRIPTORS: Final = Path("/proc/self/fd")

AT_ONCE: Final = 16
"""Connections to read before a pause, which takes 0.1 ms: training may want the interpreter meanwhile."""

PAUSE_S: Final = 0.0005

RESENT, ACKED, RTT_MIN, BUSY = (100, "I"), (120, "Q"), (148, "I"), (168, "Q")
"""Offset and type in struct tcp_info. Newer kernels only append to it, so an older one reports less."""

MOST_INFO: Final = 512
UNKNOWN_RTT: Final = 2**32 - 1
US: Final = 1000  # the kernel's microseconds

LEAST_NBYTES: Final = 1 << 20
"""Pairs that carried less are not recorded."""

MOST_PAIRS: Final = 10_000
"""Closed pairs to remember. Beyond them, those below `LEAST_NBYTES` are forgotten: a process may meet half the
internet."""

MOST_IN_SHORT: Final = 256
"""Descriptors, at most, for a look on the training thread."""

MAPPED: Final = "::ffff:"
"""What an address of IPv4 begins with on a socket of IPv6."""

_now = time.perf_counter_ns


class Looks:
    """Looks, each under its own surface. `blind_spots`: what this system does not report."""

    def __init__(self, recorder: Recorder, surfaces: Mapping[str, Surface], steps: StepFinder) -> None:
        self._recorder = recorder
        self._links: Links | None = None
        self._quota: Quota | None = None
        self.blind_spots: tuple[str, ...] = (UNSEEN_WITHOUT_LINUX,)
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


@dataclass(frozen=True, slots=True)
class Carried:
    """`busy_ns`: data was under way; `rtt_min_ns`: 0 unknown; `resent`: segments. 0 if the kernel does not report
    it."""

    sent_nbytes: int = 0
    busy_ns: int = 0
    rtt_min_ns: int = 0
    resent: int = 0

    def plus(self, other: Carried) -> Carried:
        known = [rtt for rtt in (self.rtt_min_ns, other.rtt_min_ns) if rtt]
        return Carried(
            self.sent_nbytes + other.sent_nbytes,
            self.busy_ns + other.busy_ns,
            min(known, default=0),
            self.resent + other.resent,
        )


@dataclass(frozen=True, slots=True)
class _Connection:
    pair: str
    carried: Carried


class Links:
    """Remembers what closed connections had carried, so that sums only grow."""

    def __init__(self) -> None:
        self._open: dict[int, _Connection] = {}  # by inode; the system does not use one twice
        self._closed: dict[str, Carried] = {}
        self._others: set[int] = set()  # inodes of sockets that are not TCP
        self._looking = threading.Lock()

    def look(self) -> dict[str, Carried]:
        """Return what each pair of addresses ("own>peer", without ports) has carried, if it is enough to record.

        Opening and closing a connection count as a byte each. Raises OSError if the system does not list descriptors.
        """
        with self._looking:
            self._ask_all()
            return self._sums()

    def look_in_short(self) -> dict[str, Carried]:
        """Return the same if few descriptors are open and no other thread looks; else nothing."""
        few = sum(1 for _ in DESCRIPTORS.iterdir()) <= MOST_IN_SHORT
        if not few or not self._looking.acquire(blocking=False):
            return {}
        try:
            self._ask_all()
            return self._sums()
        finally:
            self._looking.release()

    def _sums(self) -> dict[str, Carried]:
        carried = dict(self._closed)
        for connection in self._open.values():
            carried[connection.pair] = carried.get(connection.pair, Carried()).plus(connection.carried)
        return {pair: link for pair, link in carried.items() if link.sent_nbytes > LEAST_NBYTES}

    def _ask_all(self) -> None:
        seen: set[int] = set()
        asked = 0
        for number in [int(entry.name) for entry in DESCRIPTORS.iterdir()]:
            inode = _inode(number)
            if inode is None or inode in seen:
                continue
            if inode not in self._others:
                inode = self._ask(number) or inode
                asked += 1
                if not asked % AT_ONCE:
                    time.sleep(PAUSE_S)
            seen.add(inode)
        self._others &= seen
        for inode in self._open.keys() - seen:
            gone = self._open.pop(inode)
            self._closed[gone.pair] = self._closed.get(gone.pair, Carried()).plus(gone.carried)
        if len(self._closed) > MOST_PAIRS:
            self._closed = {pair: link for pair, link in self._closed.items() if link.sent_nbytes > LEAST_NBYTES}

    def _ask(self, descriptor: int) -> int | None:
        """Read a connection. Return the inode that was read: the descriptor may be another's by now. None if it is
        gone."""
        try:
            own = os.dup(descriptor)
        except OSError:
            return None
        inode = _inode(own)
        if inode is None:
            os.close(own)
            return None
        known = self._open.get(inode)
        # For a non-blocking socket Python applies no default timeout of the program; given a family, it asks for none.
        family = -1 if known is None else socket.AF_INET
        asked = socket.SocketType(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.IPPROTO_TCP, own)
        try:
            if asked.family not in (socket.AF_INET, socket.AF_INET6):
                self._others.add(inode)
            else:
                pair = _pair(asked) if known is None else known.pair
                self._open[inode] = _Connection(pair, _carried(asked))
        except OSError:  # it is not connected
            pass
        finally:
            asked.close()
        return inode


def _inode(descriptor: int) -> int | None:
    """Return the inode of a socket; None if the descriptor is not a socket, or closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else None


def _carried(asked: socket.SocketType) -> Carried:
    """Raises OSError if the socket is not TCP."""
    return carried_of(asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, MOST_INFO))


def _pair(asked: socket.SocketType) -> str:
    """Raises OSError if the socket is not connected."""
    return ">".join(str(name[0]).removeprefix(MAPPED) for name in (asked.getsockname(), asked.getpeername()))


def carried_of(info: bytes) -> Carried:
    """Read a `struct tcp_info`, in the length that the kernel gives it."""
    rtt = _field(info, RTT_MIN)
    return Carried(
        _field(info, ACKED), _field(info, BUSY) * US, 0 if rtt == UNKNOWN_RTT else rtt * US, _field(info, RESENT)
    )


def _field(info: bytes, field: tuple[int, str]) -> int:
    at, kind = field
    if len(info) < at + struct.calcsize(kind):
        return 0
    found: int = struct.unpack_from(f"={kind}", info, at)[0]
    return found
