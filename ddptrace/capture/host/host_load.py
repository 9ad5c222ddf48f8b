"""What delays the training thread besides its own work: it waits for a processor, a quota holds it, or garbage is
collected.

Linux counts how long a processor quota has held a control group:

/proc/self/cgroup      which group the process is in      1:cpu,cpuacct:/job/7      0::/job/7
/proc/self/mountinfo   where groups are mounted           … /sys/fs/cgroup/cpu …    … /sys/fs/cgroup …
                                                          version 1                 version 2

A group without a quota is bound by that of the nearest group around it.
"""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path, PurePosixPath
from typing import Any, Final

from torch._C import _current_graph_task_id

from ddptrace.capture.steps.finder import StepFinder
from ddptrace.record import Recorder
from ddptrace.schema import Kind

LEAST_NS: Final = 1_000_000
"""Shorter collections are not recorded: there are many, and what they cost is the program's own time."""

MOST_MOMENTS: Final = 8192
"""Begins and ends of collections that are remembered until the next look, at the latest by the keeper."""

_now, _cpu = time.perf_counter_ns, time.thread_time_ns
_ident, _native = threading.get_ident, threading.get_native_id
_never: Final = object()

_Reading = tuple[int, int, int, int]  # when; so far: queued, processor time in ns, and switches

PER_S: Final = 10**9
CONTROLLER: Final = "cpu"
ESCAPED: Final = re.compile(r"\\([0-7]{3})")  # a blank in a path, as mountinfo has it
ROOT, MOUNTED_AT = 3, 4  # fields of a line of mountinfo


class HostMarks:
    """Writes a HOST record at the end of each step, on the thread that trains."""

    def __init__(self, recorder: Recorder, steps: StepFinder) -> None:
        self._recorder = recorder
        self._steps = steps
        self._last: _Reading | None = None
        self._native = 0  # id of the thread whose file is open, 0 for none; the system does not reuse it soon
        self._file = -1
        self._opened = (0, 0)  # which file that is: the program may close it, and its descriptor is another file's then

    def install(self) -> bool:
        """Return whether the system reports what is to be recorded."""
        try:
            import resource

            self._open()
            self._switches = partial(resource.getrusage, resource.RUSAGE_THREAD)
            counts = os.pread(self._file, 128, 0) != b"0 0 0\n"  # what a kernel reports that does not count
            self._last = self._read() if counts else None
        except (ImportError, OSError, AttributeError):
            counts = False
        if not counts:
            self.close()
        return counts

    def end(self) -> None:
        """A step has ended."""
        if _ident() != self._steps.thread.ident or not self._native:
            return
        if _native() != self._native:  # another thread trains from now on
            self._open()
            self._last = None
        before, self._last = self._last, self._read()
        if before is not None and self._steps.sampling.covers(before[0]):
            began, queued, cpu, switches = before
            at, queued_now, cpu_now, switches_now = self._last
            self._recorder.event(
                Kind.HOST, 0, 0, began, at, queued_now - queued, cpu_now - cpu, switches_now - switches
            )

    def close(self) -> None:
        """Also in a forked child."""
        if self._is_open():
            os.close(self._file)
        self._file, self._native = -1, 0

    def _open(self) -> None:
        self.close()
        native = _native()
        self._file = os.open(f"/proc/self/task/{native}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._native, opened = native, os.fstat(self._file)
        self._opened = opened.st_dev, opened.st_ino

    def _is_open(self) -> bool:
        try:
            found = os.fstat(self._file)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._opened

    def _read(self) -> _Reading:
        if not self._is_open():
            self._open()
        at = _now()
        return at, int(os.pread(self._file, 128, 0).split()[1]), _cpu(), self._switches().ru_nivcsw


class Collections:
    """Writes a GC record of each collection that held the training thread for a while.

    A collection on another thread is left out: it holds the interpreter, but it delays the training thread only if that
    wants the interpreter meanwhile, which is unknown; a backward in C++ goes on. A thread on which autograd runs a
    backward counts as the training's: the training thread waits for it.

    The collector's callbacks are C throughout. A Python function would be the first to run after a collection, so a
    signal of that time would be handled in it, and there an exception of the handler (KeyboardInterrupt) is lost.
    """

    def __init__(self, recorder: Recorder, steps: StepFinder) -> None:
        self._recorder = recorder
        self._steps = steps
        self._moments: deque[tuple[int, int, int, dict[str, int] | None]] = deque(maxlen=MOST_MOMENTS)
        self._begin: int | None = None  # of the collection whose end comes next
        self._looking = threading.Lock()
        self._callbacks = _callbacks(self._moments.append)

    def install(self) -> None:
        gc.callbacks.extend(self._callbacks)

    def uninstall(self) -> None:
        self.forget()
        self.look()

    def forget(self) -> None:
        """Also in a forked child."""
        gc.callbacks[:] = [callback for callback in gc.callbacks if not any(callback is own for own in self._callbacks)]

    @property
    def is_due(self) -> bool:
        """Whether there is something to record."""
        return bool(self._moments)

    def look(self) -> None:
        """Record the collections since the last look, on any thread; do nothing while another thread does."""
        if not self.is_due or not self._looking.acquire(blocking=False):
            return
        try:
            if len(self._moments) == MOST_MOMENTS:  # the oldest are gone; one of them may have been an end
                self._begin = None
            while self._moments:
                self._take(*self._moments.popleft())
        finally:
            self._looking.release()

    def _take(self, at: int, ident: int, backward: int, said: dict[str, int] | None) -> None:
        begin, self._begin = self._begin, at if said is None else None
        if said is None or begin is None or at - begin < LEAST_NS:
            return
        is_training = ident == self._steps.thread.ident or backward >= 0
        if is_training and self._steps.sampling.covers(begin):
            self._recorder.event(Kind.GC, 0, 0, begin, at, said.get("generation", 0), said.get("collected", 0))


def _callbacks(note: Callable[[Any], None]) -> tuple[Callable[[str, dict[str, int]], object], ...]:
    """Make two functions for `gc.callbacks` that call `note` at each begin and end of a collection, with the instant,
    the thread, autograd's number of the backward that runs there, and at an end the collector's own facts.

    The first stores these facts. The second reads an attribute named "start" or "stop", a property that advances an
    iterator; that calls `note` with the next of what it zips. So no line of Python runs.
    """
    said: dict[str, dict[str, int]] = {}
    called: tuple[Iterator[int], ...] = (
        iter(_now, _never),
        iter(_ident, _never),
        iter(_current_graph_task_id, _never),
    )
    starts = zip(*called, repeat(None), strict=False)
    stops = zip(*called, iter(partial(said.get, "stop"), _never), strict=False)
    properties = {name: property(partial(next, map(note, of))) for name, of in (("start", starts), ("stop", stops))}
    moments = type("Moments", (), properties)()
    return said.__setitem__, partial(getattr, moments)


@dataclass(frozen=True, slots=True)
class Held:
    """`held_ns`: time held so far, added over processors; `quota_ns`: processor time allowed per second."""

    held_ns: int
    periods: int
    quota_ns: int


class Quota:
    """`about`: the folder in /proc about this process."""

    def __init__(self, about: Path = Path("/proc/self")) -> None:
        self._about = about
        self._mounts = (about / "mountinfo").read_text()
        self._own = ""
        self._groups: tuple[Path, ...] = ()

    def look(self) -> Held | None:
        """Return the figures of the quota, None if there is none. Raises OSError if the system reports nothing."""
        own = (self._about / "cgroup").read_text()
        if own != self._own:  # the process may be put into another group
            self._own, self._groups = own, tuple(groups_around(own, self._mounts))
        return next(filter(None, map(_held, self._groups)), None)


def groups_around(own: str, mounts: str) -> Iterator[Path]:
    """Yield the folders of a process's group and of the groups around it, the nearest first. `own`, `mounts`: the text
    of its `cgroup` and `mountinfo` in /proc."""
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in own.splitlines())}
    first = next((path for controllers, path in paths.items() if CONTROLLER in controllers.split(",")), None)
    kind, path = ("cgroup2", paths.get("")) if first is None else ("cgroup", first)
    mount = next(_mounted(mounts, kind), None)
    if path is None or mount is None:
        return
    root, seen_at = mount
    inside = PurePosixPath(path)
    try:
        below = inside.relative_to(root)
    except ValueError:  # of a container, which sees its own group as the root
        below = PurePosixPath()
    folder = seen_at / below
    yield folder
    yield from (seen_at / parent for parent in below.parents if parent != below)


def _mounted(mounts: str, kind: str) -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield the root group of each mounted tree of this kind with a processor controller, and its mount point."""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        parts, (name, _, options) = fields.split(), (rest.split(None, 2) + [""] * 3)[:3]
        if name == kind and (kind == "cgroup2" or CONTROLLER in options.split(",")):
            yield PurePosixPath(_plain(parts[ROOT])), Path(_plain(parts[MOUNTED_AT]))


def _plain(path: str) -> str:
    return ESCAPED.sub(lambda found: chr(int(found[1], 8)), path)


def _held(group: Path) -> Held | None:
    try:
        quota_ns = _quota_ns(group)
        stat = dict(line.split(None, 1) for line in (group / "cpu.stat").read_text().splitlines())
    except FileNotFoundError:  # the root has no quota
        return None
    if quota_ns is None:
        return None
    held_ns = int(stat["throttled_usec"]) * 1000 if "throttled_usec" in stat else int(stat.get("throttled_time", 0))
    return Held(held_ns, int(stat.get("nr_throttled", 0)), quota_ns)


def _quota_ns(group: Path) -> int | None:
    newer = group / "cpu.max"
    if newer.exists():
        quota, period = newer.read_text().split()
    else:
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    return None if quota in ("max", "-1") else int(quota) * PER_S // int(period)
