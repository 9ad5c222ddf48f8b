"""Opens profiler windows on occasion: when steps have become slower, or when `ddptrace profile` asks for one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch.autograd.profiler as autograd_profiler
from torch.profiler import schedule

from ddptrace.capture.profiler.next_window import LEAST_IN_A_ROW, Agreed, Place, SameSteps, SlowSteps, Wish
from ddptrace.findings import STEPS_SLOWER, WINDOW_ASKED, WINDOW_MISSED
from ddptrace.record import Recorder
from ddptrace.record.directory import read_json, write_json
from ddptrace.schema import PROFILE_ANSWER, PROFILE_REQUEST
from ddptrace.trace_options import MOST_STEPS, when_slow
from ddptrace.units import duration, named

_now = time.perf_counter_ns

LAST_STEPS: Final = 32
"""Their lengths tell how long the faster steps take."""


class Occasions:
    """Counts steps, and says when a window is to begin. `rank`: of this process, as far as known."""

    def __init__(self, recorder: Recorder, slow: when_slow | None, key: str, rank: Callable[[], int | None]) -> None:
        self.decided: Callable[[Agreed], None] = lambda agreed: None
        self._recorder = recorder
        self._rank = rank
        self._slow = slow
        self._detector = None if slow is None else SlowSteps(slow.factor)
        self._left = 0 if slow is None else slow.at_most
        self._steps = 0  # that have ended
        self._lengths = [0] * LAST_STEPS  # replaced in turn: another thread reads it
        self._ended = _now()
        self._was_profiled = False
        self._busy_until = 0  # first step after the last window
        self._same = SameSteps(key, self._place, self._tell, self._tell_missed)

    def start(self) -> None:
        """Look for slowdowns on other ranks, if slowdowns are wanted."""
        if self._slow is not None:
            self._same.start()

    def close(self) -> None:
        self._same.close()
        due = self._same.due
        if due is not None and self._steps < due.begin - 1:
            self._tell_missed(f"the training ended with step {self._steps - 1}, before {_window(due)}")

    def ask(self, request: str, steps: int) -> None:
        """Ask for a window of `steps` steps, as soon as possible. A request counts once, however often it is seen."""
        self._same.want(Wish(self._steps, steps, request))

    def step_ends(self) -> None:
        """A step has ended, on the thread that trains."""
        now = _now()
        length, self._ended = now - self._ended, now
        self._lengths[self._steps % LAST_STEPS] = length
        self._steps += 1
        is_profiled = autograd_profiler._is_profiler_enabled
        if self._detector is not None and not (is_profiled or self._was_profiled):
            found = self._detector.add(length)
            if found is not None and self._slow is not None:
                self._same.want(Wish(self._steps - 1, self._slow.active, slowdown=found))
        self._was_profiled = is_profiled

    def next_window(self) -> Any:
        """Return the schedule of a window that begins now, with its warm-up; None if there is none."""
        due = self._same.due
        if due is None or self._steps < due.begin - 1:
            return None
        self._same.due = None
        self._busy_until = due.last + 1
        self._count(due)
        if self._steps >= due.begin:
            self._tell_missed(f"it learned in step {self._steps} of {_window(due)}, and was past their begin")
            return None
        if not self._is_included(due):
            return None
        return schedule(wait=0, warmup=1, active=due.wish.active, repeat=1)

    def _count(self, window: Agreed) -> None:
        if self._detector is None:
            return
        self._detector.restart()
        self._left -= window.wish.slowdown is not None
        if not self._left:
            self._detector = None

    def _is_included(self, window: Agreed) -> bool:
        """Whether this rank records the window. All ranks record one that was asked for."""
        return self._slow is None or window.wish.slowdown is None or self._slow.includes(self._rank() or 0)

    def _place(self) -> Place:
        ended, copy = self._steps, self._lengths.copy()
        lengths = sorted(filter(None, copy))
        last = [copy[step % LAST_STEPS] for step in range(max(ended - LEAST_IN_A_ROW, 0), ended)]
        usual_ns = lengths[len(lengths) // 4] if lengths else 0
        return Place(max(ended, self._busy_until), usual_ns, min(last, default=0))

    def _tell_missed(self, why: str) -> None:
        self._recorder.note(WINDOW_MISSED, f"this rank opened no profiler window: {why}")

    def _tell(self, agreed: Agreed) -> None:
        """Note why there is a window, on the rank that decided on it."""
        found, ranks = agreed.wish.slowdown, self._ranks_of(agreed)
        if found is None:
            self._recorder.note(WINDOW_ASKED, f"`ddptrace profile` asked for {_window(agreed)} on {ranks}")
        else:
            self._recorder.note(
                STEPS_SLOWER,
                f"steps took {found.slow_ns / found.usual_ns:.1f} times as long as before: on rank {agreed.wish.rank},"
                f" {found.steps} in a row up to step {agreed.wish.step} had a median of {duration(found.slow_ns)}, and"
                f" the usual ones before of {duration(found.usual_ns)}; this opened {_window(agreed)} on {ranks}",
            )
        self.decided(agreed)

    def _ranks_of(self, agreed: Agreed) -> str:
        asked = agreed.wish.slowdown is None or self._slow is None or self._slow.ranks == "all"
        which = "all ranks" if asked or self._slow is None else named("rank", [*map(int, self._slow.ranks)])
        missing = agreed.size - agreed.confirmed
        return f"{which}, except {missing} of {agreed.size} that did not answer" if missing else which


def _window(agreed: Agreed) -> str:
    return f"the window of {named('step', range(agreed.begin, agreed.last + 1))}"


class Requests:
    """Looks for the file in which `ddptrace profile` asks for a window, and answers it.

    `root`: the folder that it lies in. `run_id`: of this run, as far as known: a file may have been left by another.
    `occasions`: None if the program's schedule opens the windows.
    """

    def __init__(self, root: Path, run_id: Callable[[], str], occasions: Occasions | None) -> None:
        self._root = root
        self._run_id = run_id
        self._occasions = occasions
        self._seen = ""
        if occasions is not None:
            occasions.decided = self._answer

    def look(self) -> None:
        """Follow a new request. Called now and then, on a thread that training does not wait for."""
        said = read_json(self._root / PROFILE_REQUEST)
        request = "" if said is None else str(said.get("request", ""))
        if said is None or request in ("", self._seen) or said.get("run_id") != self._run_id():
            return
        self._seen, steps = request, said.get("steps")
        if self._occasions is None:
            self._write({"request": request, "refused": "it opens its profiler windows on a schedule, profile=..."})
        elif isinstance(steps, int) and 0 < steps <= MOST_STEPS:
            self._occasions.ask(request, steps)

    def _answer(self, agreed: Agreed) -> None:
        if agreed.wish.request:
            self._write(
                {
                    "request": agreed.wish.request,
                    "first": agreed.begin,
                    "last": agreed.last,
                    "ranks": agreed.size,
                    "confirmed": agreed.confirmed,
                }
            )

    def _write(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            write_json(self._root / PROFILE_ANSWER, answer)
