"""Profiler windows: those of our own schedule, and those of a profiler that the program runs itself.

Every window is seen at the same places: where torch's inner profiler (`torch.autograd.profiler.profile`) starts and
stops recording, and at `export_chrome_trace`. The outer one (`torch.profiler.profile`) binds its own methods when it is
made, perhaps before the trace, so patches of its `start_trace` would not be called.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
from torch._C import _current_graph_task_id
from torch.profiler import ProfilerAction, profile
from torch.profiler.profiler import _KinetoProfile

from ddptrace.capture.handlers import HeldHandlers, WaitingHandlers
from ddptrace.capture.profiler.kineto_files import PACKED, copy_packed, is_packed, plain_nbytes
from ddptrace.capture.profiler.profilers import RECORDING, Apart, Spans, ends_now, scheduled
from ddptrace.capture.surface import Patches, Surface
from ddptrace.findings import PROFILER_GAVE_WAY, WINDOW_NOT_KEPT
from ddptrace.record import Recorder
from ddptrace.schema import Kind

_now = time.perf_counter_ns

NOTICEABLE_NS = 500_000
"""Shorter pauses of the training thread are not recorded."""

PLENTY_NBYTES = 4 << 30
"""With this much room the events are not counted: counting takes nearly as long as writing them."""

ENDING_S = 0.02
"""Longest wait, at the end of a window, for collectives that are nearly over."""

UNDER_WAY_MAX = 20
"""Most steps by which a window is longer because collectives are under way."""

UNDER_WAY_S = 1.0
"""Longest wait for collectives where a window must end now."""

SWITCHED_S = 10.0
"""Longest wait, at the end of a trace, for a thread that is switching the profiler."""

ELSEWHERE = (
    "a window was open on one thread while another trained: it covers the first thread only, and no other window "
    "opened before it ended"
)
LEFT_OPEN = (
    "the trace was left on another thread than the one on which a profiler window is open: torch's profiler stays on "
    "there until that thread ends; leave the trace on the thread that trains"
)
NOT_KEPT = "no room for a profiler file: the rest of the disk is reserved for the program"


class Windows:
    """Records begin and end of windows, and puts their Kineto files into the rank's folder.

    `next_window` is asked at each step, while no profiler of ours is in use, for the schedule of a single window that
    begins now. `are_over` waits for the collectives of a window, at most the seconds it is given.
    """

    def __init__(
        self, recorder: Recorder, surface: Surface, folder: Callable[[], Path], are_over: Callable[[float], bool]
    ) -> None:
        self.next_window: Callable[[], Callable[[int], ProfilerAction] | None] = lambda: None
        self._recorder = recorder
        self._surface = surface
        self._folder = folder
        self._are_over = are_over
        self._longer = 0  # steps by which this window is longer already
        self._count = 0
        self._trace_begin = _now()
        self._spans = Spans()
        self._own: profile | None = None
        self._is_single = False  # it opens one window and ends
        self._thread = 0  # on which a window is open
        self._thread_end = ThreadEnd()
        self._has_told_elsewhere = False
        self._switching: Any = threading.RLock()  # which knows whose it is, whenever another thread raises into it
        self._waiting = HeldHandlers()
        self._saving = False
        self._is_late = False  # a step was over within a backward
        self._idle = False
        self._theirs: set[int] = set()  # ids of the program's profilers that run

    def install(self, patches: Patches) -> None:
        patches.replace(autograd_profiler.profile, "_prepare_trace", self._prepare_trace)
        patches.replace(autograd_profiler.profile, "_start_trace", self._start_trace)
        patches.replace(autograd_profiler.profile, "__exit__", self._exit)
        patches.replace(_KinetoProfile, "export_chrome_trace", self._export)

    def open(self, wanted: Callable[[int], ProfilerAction] | profile) -> None:
        """Start our own profiler on the program's steps: one with this schedule, or this one itself."""
        own = self._own = wanted if isinstance(wanted, profile) else scheduled(wanted)
        own.schedule = Apart(own.schedule)
        own.on_trace_ready = functools.partial(self._save, own.on_trace_ready)
        self._idle = True
        if own.schedule(0) is not ProfilerAction.NONE and self._another_runs():
            self._give_way(own)
            return
        self._switch("starting the profiler", own, own.start)

    def step(self) -> None:
        """A step of the program is over. Skip it if another thread is switching the profiler: torch's profiler is not
        made for two threads at once, and no thread of the program waits for another one here. Within a backward the
        step waits for `backward_ends`: torch's engine takes back there what it changes, which ends the process."""
        if _current_graph_task_id() >= 0:
            self._is_late = True
        elif not self._switching._is_owned():  # a step within a step
            try:
                if self._switching.acquire(blocking=False):
                    self._step()
            finally:
                if self._switching._is_owned():
                    self._switching.release()

    def backward_ends(self, _: int) -> None:
        if self._is_late:
            self._is_late = False
            self.step()

    def _step(self) -> None:
        own = self._own
        if own is None:
            self._open_next()
        elif self._idle and own.schedule(own.step_num + 1) is ProfilerAction.NONE:
            own.step()  # between windows: it only counts
        elif not self._may_switch():
            self._tell_elsewhere()
        elif self._another_runs():
            self._give_way(own)
        elif not (ends_now(own) and self._goes_on()):
            self._switch("switching the profiler", own, own.step)
            if self._is_single and self._idle and self._own is own:
                self._own = None
                self._stop(own)

    def _goes_on(self) -> bool:
        """Whether the window goes on for a step, since collectives are under way: see `CollectivesInWindow`."""
        if self._longer < UNDER_WAY_MAX and not self._are_over(ENDING_S):
            self._longer += 1
            return True
        self._longer = 0
        return False

    def _open_next(self) -> None:
        """Open the window that is due now, if one is."""
        wanted = self.next_window()
        if wanted is not None:
            self._is_single = True
            self.open(wanted)

    def close(self) -> None:
        has_turn = self._switching.acquire(timeout=SWITCHED_S)
        if self._own is not None and has_turn:
            own, self._own = self._own, None
            if self._may_switch():
                self._stop(own)
            else:
                self._tell_elsewhere()
                self._tell_open()

    def _save(self, handler: Callable[[profile], Any] | None, profiler: profile) -> None:
        """Keep a window that is over. torch saves it only once, so the program's own `handler` comes first; if it
        exports a file, that is copied."""
        count, self._saving = self._count, True
        try:
            if handler is not None:
                with self._waiting.let(), torch._C._EnableTorchFunction():  # it is the program's, and so are its modes
                    handler(profiler)
            if self._count == count:
                self._export_own(profiler)
        finally:
            self._saving = False

    def _export_own(self, profiler: profile) -> None:
        if not self._surface.on:  # it has failed before: this is its end
            return
        plain = self._folder() / "kineto.json"  # torch would pack it at the slowest level, while training stands
        try:
            plain.open("ab").close()  # libkineto complains on the program's stderr about a file that it cannot open
            has_room = self._recorder.has_room(PLENTY_NBYTES) or self._recorder.has_room(plain_nbytes(profiler))
        except OSError as error:
            self._note_unwritable(error)
            return
        try:
            if not has_room:
                self._recorder.note(WINDOW_NOT_KEPT, NOT_KEPT)
                return
            profiler.export_chrome_trace(str(plain))
        finally:
            plain.unlink(missing_ok=True)

    def _note_unwritable(self, error: OSError) -> None:
        self._recorder.note(WINDOW_NOT_KEPT, f"a profiler file could not be written: {error.strerror}")

    def _held(self, why: str, action: Callable[[], None]) -> None:
        """Run `action`, which switches the profiler. The program's signal handlers wait meanwhile: one that raises
        would leave the profiler half switched."""
        begin, own, handlers = _now(), self._own, WaitingHandlers()
        try:
            try:
                self._waiting.hold(handlers)
                self._attempt(action, own)
                self._end_if_off()
                self._tell_pause(why, begin)
            finally:
                self._waiting.release(handlers)
        finally:  # another thread may have raised into the first
            self._waiting.release(handlers)

    def _attempt(self, action: Callable[[], None], own: profile | None) -> None:
        try:
            action()
        except Exception as error:  # a profiler that fails must not end the training
            self._own = None
            try:
                self._surface.failed(error)
            finally:
                self._end(own if autograd_profiler._is_profiler_enabled else None)

    def _switch(self, why: str, own: profile, action: Callable[[], None]) -> None:
        def switch() -> None:
            try:
                action()
            finally:
                self._bind(own)
                self._idle = own.current_action is ProfilerAction.NONE

        self._held(why, switch)

    def _stop(self, own: profile) -> None:
        """Stop it once: its window shall not end once more with its thread."""

        def stop() -> None:
            self._thread = 0
            self._stop_now(own)

        self._held("stopping the profiler", stop)

    def _stop_now(self, own: profile) -> None:
        """Stop it, whatever its schedule says, once the collectives of its window are over."""
        self._are_over(UNDER_WAY_S)
        own.stop()

    def _end_if_off(self) -> None:
        """End our profiler if this surface is off, since a file could not be kept: no step reaches it any more, and it
        would record for the rest of the training."""
        if not self._surface.on:
            own, self._own = self._own, None
            self._end(own)

    def _end(self, own: profile | None) -> None:
        """Only stop recording: of a step that ended half-way torch does not know what is left to do, and `stop` could
        end the process."""
        with contextlib.suppress(Exception):  # the failure has been noted already
            if own is not None and torch._C._autograd._profiler_enabled():
                own.stop_trace()
            elif own is not None:
                autograd_profiler._run_on_profiler_stop()  # it was about to begin

    def _tell_pause(self, why: str, begin: int) -> None:
        end = _now()
        if end - begin > NOTICEABLE_NS:
            self._recorder.event(Kind.PAUSE, 0, self._recorder.intern(why), begin, end)

    def _prepare_trace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make room before another profiler starts: two at once end the process."""

        def _prepare_trace(profiler: Any) -> Any:
            self._surface.call(self._make_room, profiler)
            return original(profiler)

        return _prepare_trace

    def _make_room(self, profiler: Any) -> None:
        own = self._own
        if own is not None and profiler is own.profiler:
            return
        self._theirs.add(id(profiler))
        if own is not None and not self._idle:
            self._give_way(own)

    def _another_runs(self) -> bool:
        """Whether the program profiles, even since before this trace."""
        return bool(self._theirs) or (self._idle and autograd_profiler._is_profiler_enabled)

    def _may_switch(self) -> bool:
        """Whether windows may begin and end on this thread. An open window belongs to its thread: torch's profiler ends
        the process if another thread ends the window, or if that thread ends before the window."""
        return self._thread in (0, threading.get_ident())

    def _bind(self, own: profile) -> None:
        """Note whose thread an open window is, and have it end with that thread."""
        self._thread = threading.get_ident() if own.current_action in RECORDING else 0
        if self._thread and self._thread != threading.main_thread().ident:
            self._thread_end.call(functools.partial(self._end_with_thread, own))

    def _end_with_thread(self, own: profile) -> None:
        """End the window with its thread; other threads may open further ones. After the trace nothing is saved."""
        if self._thread == threading.get_ident():
            self._surface.attempt(self._held, "stopping the profiler", functools.partial(self._stop_now, own))
            own.current_action, self._idle, self._thread = ProfilerAction.NONE, True, 0

    def _tell_elsewhere(self) -> None:
        if not self._has_told_elsewhere:
            self._has_told_elsewhere = True
            self._recorder.note(WINDOW_NOT_KEPT, ELSEWHERE)

    def _tell_open(self) -> None:
        """Tell the program what the trace leaves in place: to end the window here would end the process."""
        with contextlib.suppress(Exception):  # the program may have made errors of warnings
            warnings.warn(f"ddptrace: {LEFT_OPEN}", RuntimeWarning, stacklevel=2)

    def _give_way(self, own: profile) -> None:
        if not self._may_switch():
            return
        self._own = None
        if not self._idle:
            self._stop(own)
        so = "did not open this one" if self._is_single else "opened no more windows"
        message = f"the program ran its own profiler when a window of ddptrace was due: ddptrace {so}"
        self._recorder.note(PROFILER_GAVE_WAY, message)

    def _start_trace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _start_trace(profiler: Any) -> Any:
            out = original(profiler)
            self._surface.call(self._begin_span, profiler)
            return out

        return _start_trace

    def _begin_span(self, profiler: Any) -> None:
        self._spans.keep(profiler, _now(), 0)

    def _exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __exit__(profiler: Any, *args: Any) -> Any:
            try:
                self._surface.call(self._are_over, ENDING_S)
                self._surface.call(self._end_span, profiler)
            finally:  # the program may raise into this from elsewhere
                out = original(profiler, *args)
            return out

        return __exit__

    def _end_span(self, profiler: Any) -> None:
        self._theirs.discard(id(profiler))
        span = self._spans.of(profiler)
        self._spans.keep(profiler, span[0] if span else self._trace_begin, _now())  # it may have begun before the trace

    def _export(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def export_chrome_trace(profiler: Any, path: str, *args: Any, **kwargs: Any) -> Any:
            out = original(profiler, path, *args, **kwargs)
            self._surface.call(self._keep, profiler, Path(path))  # the program has its file; ours is a copy
            if not self._saving:  # ours is in the middle of a step
                self._end_if_off()
            return out

        return export_chrome_trace

    def _keep(self, profiler: Any, path: Path) -> None:
        """Keep the window's file, unless the process has as many files open as it may: the next one may fit."""
        try:
            self._copy(profiler, path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._note_unwritable(error)

    def _copy(self, profiler: Any, path: Path) -> None:
        """Record the window and copy its file; for a profiler of the program, the program waits for that."""
        begin = _now()
        span = self._spans.of(profiler.profiler)
        if span is None:  # it stopped before the trace
            return
        if not self._recorder.has_room(path.stat().st_size // (1 if is_packed(path) else PACKED)):
            self._recorder.note(WINDOW_NOT_KEPT, NOT_KEPT)
            return
        own = self._saving
        name = f"kineto-{'' if own else 'user-'}{self._count}.json.gz"
        self._count += 1
        copy_packed(path, self._folder() / name)
        self._recorder.window(name, *span, by_user=not own)
        if not own:  # `_held` records the pause of ours
            self._tell_pause("copying the program's profile", begin)


class _Marker:
    pass


class ThreadEnd(threading.local):
    """Calls an action when a thread ends, on that thread: Python then drops what is local to it."""

    marker: _Marker | None = None

    def call(self, action: Callable[[], None]) -> None:
        """Call `action` when the calling thread ends, once, however often this is called; not on a thread that the end
        of the process cuts off. `action` must not raise."""
        if self.marker is None:
            self.marker = _Marker()
            weakref.finalize(self.marker, action).atexit = False
