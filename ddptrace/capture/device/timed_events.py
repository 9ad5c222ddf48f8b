"""Timed events on the training's streams, from a pool.

compute stream   F──────────F  B────r────r────r   W┄┄┄┄┄┄┄B  U──U       marks, and r: a bucket's last gradient is ready
communication          r [bucket 1][bucket 2][bucket 3]
stream of ours             ┄┄┄┄┄┄┄┄e┄┄┄┄┄┄┄┄┄e┄┄┄┄┄┄┄┄┄e                 it waits for each collective: e is its end

The stream of ours has no other work, and nothing waits for it. Events become records on the recorder's thread, a beat
later or whenever they are over. An event that never ends is kept, up to the size of the pool.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

import torch
from torch._C import _current_graph_task_id
from torch.autograd import Variable

from ddptrace.capture.device.clock import DeviceApi, DeviceClock, api_of
from ddptrace.capture.origins.modules import named_modules, parameters_of
from ddptrace.capture.surface import Surface
from ddptrace.findings import DEVICE_EVENTS_LOST
from ddptrace.record import Recorder
from ddptrace.schema import DeviceMark, Kind

_now = time.perf_counter_ns

POOL: Final = 8192
"""Events under way at once, a hundred steps of a large model. What comes while all are under way is not timed."""
NUDGED_AT: Final = 1024
"""Events under way at which the recorder's thread is asked to look before its next beat."""
MOST_UPDATES: Final = 4
"""Updates after a forward that are marked; a program may have an optimizer for each parameter. What comes after these
counts where the next mark waits behind it."""
SMALL_NBYTES: Final = 1 << 20
"""Waiting for a collective on a stream of ours has torch's allocator keep its tensors until it is over. That does not
matter for buckets, which are never freed, and for small tensors; larger ones of the program are left alone."""
TIED_EVERY_NS: Final = 500_000_000
LONGEST_DURATION_NS: Final = 2**32 - 1

CLOCK, MARK = int(Kind.DEVICE_CLOCK), int(Kind.DEVICE_MARK)
CALL, WAIT = int(Kind.DEVICE_CALL), int(Kind.DEVICE_WAIT)
WAIT_BEGIN, UNTIMED, STILL = int(DeviceMark.WAIT_BEGIN), int(DeviceMark.UNTIMED), int(DeviceMark.STILL)
ON_MARKS: Final = 1
"""Flag of a call or a wait on the stream of the marks."""


class Placed(NamedTuple):
    """Events that become one record: one of a mark; of a call, when its inputs are ready and, unless a stream's wait
    tells that, when it ends; two of a wait, before and after it."""

    kind: int
    flags: int
    at: int  # of the host
    seq: int  # of the call
    first: Any
    last: Any = None
    work: Any = None  # which may tell how long the call took
    until: int = 0  # of the host, which launched nothing since `at`
    ran_here: bool = False  # a call that the stream itself ran: that is a wait, too


class Still(NamedTuple):
    """An event on the compute stream, behind which the host may launch nothing for a while."""

    placed: int
    event: Any


class DeviceTimer:
    """The events of one device. Its methods never wait: what the device does is learned later."""

    def __init__(self, api: DeviceApi, recorder: Recorder, surface: Surface) -> None:
        self._api = api
        self._recorder = recorder
        self._surface = surface
        self._name = recorder.intern(str(api.device))
        self._clock = DeviceClock(api)
        self._tied_ns = 0  # when it was tied to the host's last
        self._placed: deque[Placed] = deque()
        self._held: list[Placed] = []  # not over at the last look
        self._free: deque[Any] = deque()
        self._made = itertools.count(1)
        self._is_exhausted = False
        self._skipped = 0
        self._looking = threading.Lock()
        self._probing = threading.Lock()
        self._stream = -1  # of the last mark
        self._compute: Any = None  # that stream
        self._last: Any = None  # the event of the last mark
        self._streams: dict[int, Any] = {}  # by group: each waits for the collectives of one queue
        self._tells_durations = True
        self._updates = 0  # since the last forward began
        self._task = -1  # the backward at whose end a mark is due
        self._waits = False  # in this backward, the compute stream's wait is marked
        self.captures = 0  # graphs that are being captured

    @property
    def selected(self) -> Callable[[], AbstractContextManager[Any]]:
        """As that of the device. For threads of ours that call this timer."""
        return self._api.selected

    @property
    def event_type(self) -> type:
        return self._api.event_type

    def __len__(self) -> int:
        """Return how many records are due."""
        return len(self._placed) + len(self._held)

    # On threads of the training ---------------------------------------------------------------------------------------

    def mark(self, mark: int) -> None:
        """Mark this place on the current stream."""
        if self._surface.live:
            self._surface.call(self._mark, mark)

    def forward_begins(self) -> None:
        self._updates = 0
        self.mark(DeviceMark.FORWARD_BEGIN)

    def update_begins(self) -> None:
        self._updates += 1
        if self._updates <= MOST_UPDATES:
            self.mark(DeviceMark.UPDATE_BEGIN)

    def update_ends(self) -> None:
        if self._updates <= MOST_UPDATES:
            self.mark(DeviceMark.UPDATE_END)

    def backward_begins(self) -> None:
        self._waits = False
        self.mark(DeviceMark.BACKWARD_BEGIN)

    def wait_begins(self) -> None:
        """From here on, the current stream waits for the collectives of this backward."""
        if not self._waits:
            self._waits = True
            self.mark(WAIT_BEGIN)

    def ready(self, *, at_end: bool) -> Any:
        """A collective is about to be issued: return an event at which its inputs are ready. None: not timed.
        `at_end`: if this is in a backward, the compute stream waits for it at the end of that."""
        return self._surface.call(self._ready, at_end) if self._surface.live else None

    def issued(self, seq: int, launch: int, group: int, work: Any, ready: Any) -> None:
        """It was issued; `ready` is what `ready()` returned. `work`: None leaves its end to a stream that waits."""
        if ready is not None:
            self._surface.call(self._issued, seq, launch, group, work, ready)

    def ran_here(self, seq: int, launch: int, ready: Any) -> None:
        """It was issued to the current stream itself, which goes on once it is over."""
        if ready is not None:
            self._surface.call(self._ran_here, seq, launch, ready)

    def here(self) -> Any:
        """Return an event at this place of the current stream; None: not timed."""
        return self._surface.call(self._here) if self._surface.live else None

    def waited(self, seq: int, begin: int, before: Any) -> None:
        """The current stream was made to wait for a call, from `begin` of the host; `before` is from `here()`."""
        self._surface.call(self._waited, seq, begin, before)

    def before_wait(self, awaited: Any, stream: Any) -> tuple[int, Any] | None:
        """A stream (None: the current one) is about to wait for an event: return when, and an event before that; None
        if it is not the compute stream, or will not wait."""
        if not self._surface.live or self._stream < 0:
            return None
        if (self._api.current() if stream is None else stream).stream_id != self._stream:
            return None
        placed: tuple[int, Any] | None = self._surface.call(self._before_wait, awaited, stream)
        return placed

    def after_wait(self, placed: tuple[int, Any], stream: Any) -> None:
        """It was made to wait; `placed` is what `before_wait` returned."""
        self._surface.call(self._after_wait, *placed, stream)

    # On any thread ----------------------------------------------------------------------------------------------------

    def has_caught_up(self) -> bool:
        """Whether the compute stream is past the last mark: then it may have nothing to do."""
        return bool(self._surface.live and self._surface.call(self._has_caught_up))

    def probe(self) -> Still | None:
        """Put an event on the compute stream, for `stood_still`; None if that cannot be now."""
        return self._surface.call(self._probe) if self._surface.live else None

    def stood_still(self, still: Still, until: int) -> None:
        """The host has launched nothing from `still` to `until`."""
        self._place(Placed(MARK, STILL, still.placed, 0, still.event, until=until))

    def _has_caught_up(self) -> bool:
        with self._probing, self._api.beside_captures():
            return not self.captures and self._last is not None and bool(self._last.query())

    def _probe(self) -> Still | None:
        with self._probing:
            if self.captures or self._compute is None or self._is_exhausted:
                return None
            with self._api.beside_captures(), self._api.inside(self._compute):
                if self._api.is_captured():
                    return None
                placed, event = _now(), self._here()
            return None if event is None else Still(placed, event)

    def _before_wait(self, awaited: Any, stream: Any) -> tuple[int, Any] | None:
        if self.captures or self._api.is_captured():
            return None
        with self._api.beside_captures():
            if awaited.query():
                return None
        event = self._here(stream)
        return None if event is None else (_now(), event)

    def _after_wait(self, begin: int, before: Any, stream: Any) -> None:
        after = self._here(stream)
        if after is None:
            self._free.append(before)
        else:
            self._place(Placed(WAIT, ON_MARKS, begin, 0, before, after))

    def _waited(self, seq: int, begin: int, before: Any) -> None:
        after = self._here()
        if after is None:
            self._free.append(before)
        else:
            on_marks = ON_MARKS if self._api.current().stream_id == self._stream else 0
            self._place(Placed(WAIT, on_marks, begin, seq, before, after))

    def _mark(self, mark: int) -> None:
        event = self._here()
        if event is not None:
            self._compute, self._last = self._api.current(), event
            self._stream = self._compute.stream_id
            self._place(Placed(MARK, mark, _now(), 0, event))

    def _ready(self, at_end: bool) -> Any:
        task = _current_graph_task_id() if at_end else -1
        if task >= 0 and task != self._task:  # before the reducer does, so that ours is called before its wait
            self._task = task
            Variable._execution_engine.queue_callback(self.wait_begins)
        return self._here()

    def _here(self, stream: Any = None) -> Any:
        event = self._event()
        if event is not None:
            event.record() if stream is None else event.record(stream)
        return event

    def _issued(self, seq: int, launch: int, group: int, work: Any, ready: Any) -> None:
        future = None if work is None else work.get_future()
        end = self._event() if future is not None and self._api.may_wait and future.done() else None
        on_marks = ON_MARKS if self._api.current().stream_id == self._stream else 0
        if future is None or end is None:
            self._place(Placed(CALL, on_marks, launch, seq, ready))
            return
        stream = self._streams.get(group)
        if stream is None:
            stream = self._streams[group] = self._api.new_stream()
        with self._api.inside(stream):
            future.wait()  # it is done for the host: only the stream waits
            end.record(stream)
        self._place(Placed(CALL, on_marks, launch, seq, ready, end, work if self._tells_durations else None))

    def _ran_here(self, seq: int, launch: int, ready: Any) -> None:
        on_marks = ON_MARKS if self._api.current().stream_id == self._stream else 0
        self._place(Placed(CALL, on_marks, launch, seq, ready, self._here(), ran_here=True))

    def _event(self) -> Any:
        """Return an unused event; None if all are under way, or a graph is being captured."""
        if self.captures or self._api.is_captured():
            self._recorder.event(MARK, UNTIMED, 0, _now(), 0)
            return None
        try:
            return self._free.popleft()
        except IndexError:
            if not self._is_exhausted:
                self._is_exhausted = next(self._made) >= POOL
                return self._api.new_event()
        self._skipped += 1
        self._recorder.event(MARK, UNTIMED, 0, _now(), 0)
        return None

    def _place(self, placed: Placed) -> None:
        self._placed.append(placed)
        if len(self._placed) == NUDGED_AT:
            self._recorder.nudge()

    # On the recorder's thread, and as the trace ends ------------------------------------------------------------------

    def look(self) -> None:
        """Write what is over by now."""
        if self._looking.acquire(blocking=False):
            try:
                if not self.captures:
                    self._surface.call(self._look_here)
            finally:
                self._looking.release()

    def capture_begins(self) -> None:
        """A graph is about to be captured: no thread may ask for an event meanwhile."""
        self.captures += 1
        for asking in (self._looking, self._probing):
            with asking:
                pass

    def capture_ends(self) -> None:
        self.captures = max(self.captures - 1, 0)  # the trace may have begun within it

    def close(self) -> None:
        """Write the last records, and note what never came."""
        self._tied_ns = 0  # one more tie, after the last event
        self.look()
        lost = len(self)
        if lost:
            self._recorder.note(
                DEVICE_EVENTS_LOST,
                f"{lost} device events had not ended when the trace did: what they mark has no device time",
            )
        if self._skipped:
            self._recorder.note(
                DEVICE_EVENTS_LOST,
                f"{self._skipped} events were not recorded, since {POOL} others had not ended",
            )

    def _look_here(self) -> None:
        with self._api.selected(), self._api.beside_captures():
            self._look()

    def _look(self) -> None:
        if _now() - self._tied_ns > TIED_EVERY_NS:
            self._tie()
        if not self._clock.is_set:
            return
        placed = self._placed
        held = []
        for one in itertools.chain(self._held, (placed.popleft() for _ in range(len(placed)))):
            if (one.last or one.first).query() and one.first.query():
                self._write(one)
            else:
                held.append(one)
        self._held = held

    def _tie(self) -> None:
        tie = self._clock.tie()
        if tie is not None:
            self._tied_ns = tie.after_ns
            self._recorder.event(CLOCK, 0, self._name, tie.before_ns, tie.after_ns, tie.device_ns)

    def _write(self, one: Placed) -> None:
        first = self._clock.at_ns(one.first)
        self._free.append(one.first)
        if one.last is None:
            times = (one.seq, first) if one.kind == CALL else (first,)
            self._recorder.event(one.kind, one.flags, 0, one.at, one.until, *times)
            return
        last = self._clock.at_ns(one.last)
        self._free.append(one.last)
        took = self._duration_ns(one.work)
        self._recorder.event(one.kind, one.flags, 0, one.at, 0, one.seq, first, last, took)
        if one.ran_here:
            self._recorder.event(WAIT, one.flags, 0, one.at, 0, one.seq, first, last)

    def _duration_ns(self, work: Any) -> int:
        """Return how long a call took that is over; 0 where the backend does not tell."""
        if work is None or not self._tells_durations:
            return 0
        try:
            ns = round(work._get_duration() * 1e6)
        except (AttributeError, RuntimeError):  # it measures none, as NCCL without TORCH_NCCL_ENABLE_TIMING
            self._tells_durations = False
            return 0
        return ns if 0 < ns <= LONGEST_DURATION_NS else 0


def events_of(device: torch.device, recorder: Recorder, surface: Surface) -> DeviceTimer | None:
    """Return the events of a device; None if it has no timed events."""
    api = api_of(device)
    return None if api is None else DeviceTimer(api, recorder, surface)


def device_of(root: torch.nn.Module) -> torch.device | None:
    """Return the device of a model's first parameter; None if it has no parameter."""
    return next((one.device for _, module in named_modules(root) for one in parameters_of(module)), None)
