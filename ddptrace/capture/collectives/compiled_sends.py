"""The plan that `compiled.cpp` gets before a backward, and its answer afterwards: which buckets come, and where their
records go.

Every bucket goes through Python once, in the first backward with these buckets: what the tap reports of them, in order,
is the plan. A bucket that differs from the plan goes through Python again, with the rest of that backward; the next
backward makes a new plan.

backward    1 by Python: learned    2 .. compiled    9 another bucket: by Python    10 learned    11 .. compiled
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections import deque
from typing import Any, Final

from ddptrace.capture.collectives.compiled import WORDS
from ddptrace.capture.failures import failure_words
from ddptrace.record import Recorder
from ddptrace.record.segment import Stretch
from ddptrace.schema import EVENT, GUARD, CallFlag, Kind

EACH: Final = 2  # records of a bucket: of its call and of its end
DONE: Final = EVENT.pack(Kind.DONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, GUARD)


class CompiledSends:
    """The buckets of the one stock DDP reducer of a process, while compiled code takes them.

    `is_sending`: compiled code takes the buckets of the running backward (and records them if the step is recorded).
    `taken`: buckets that it has recorded so far.
    """

    def __init__(self, library: Any, recorder: Recorder, seqs: itertools.count[int]) -> None:
        self.is_sending = False
        self.taken = 0
        self._library = library
        self._recorder = recorder
        self._seqs = seqs
        self._nbytes: list[int] = []  # of the plan's buckets
        self._is_known = self._is_learning = self._is_recorded = False
        self._lent: _Lent | None = None  # in this backward
        self._waiting: deque[_Lent] = deque()  # of earlier backwards, until their callbacks have come
        self._unused: Stretch | None = None
        library.ddptrace_let_go()

    def __len__(self) -> int:
        """Return the number of buckets whose end is not recorded yet."""
        return int(self._library.ddptrace_under_way())

    def learn(self, nbytes: int, reducer: int, name: int, group: int, dtype: int) -> None:
        """Learn a bucket that this thread has just sent and the tap has recorded; the numbers are from its record."""
        if self._is_known:  # the plan does not have it
            self.forget()
            if self.is_sending and not self._library.ddptrace_end():  # it is the first of other buckets
                self._nbytes, self._is_learning = [], True
        if not self._is_learning:
            return
        self._nbytes.append(nbytes)
        call = EVENT.pack(Kind.CALL, CallFlag.NATIVE, 0, name, 0, 0, 0, nbytes, 0, group, 0, reducer, dtype, GUARD)
        if not self._library.ddptrace_learn(call, DONE):
            self.forget()

    def forget(self) -> None:
        """Forget the plan, and stop learning in this backward."""
        self._is_known = self._is_learning = False
        self._library.ddptrace_forget()

    def begin(self, *, is_recorded: bool) -> None:
        """Begin a backward on this thread. Without a plan, or room in a row for its records, Python takes all
        buckets."""
        if self.is_sending:  # on another thread: Python goes on with that
            self.end()
        self._is_recorded = is_recorded
        slots = self._slots() if self._is_known and is_recorded else None
        if self._is_known and (slots or not is_recorded):
            began = self._library.ddptrace_begin(slots, self._take_seqs(), self._recorder.thread_number())
            self.is_sending = bool(began)
            if not began:
                self._park()
        else:
            self.forget()
            self._nbytes, self._is_learning = [], is_recorded

    def interrupt(self) -> None:
        """Leave the rest of this backward to Python, since something else is sent: records must stay in order."""
        self._library.ddptrace_end()

    def end(self) -> list[int]:
        """End the backward. Return the bytes of each bucket that compiled code recorded."""
        if self._is_learning:
            self._is_learning, self._is_known = False, bool(self._nbytes)
        if not self.is_sending:
            return []
        self.is_sending = False
        sent = self._nbytes[: self._library.ddptrace_end() if self._is_recorded else 0]
        self.taken += len(sent)
        self._unused = None if sent or self._lent is None else self._lent.stretch
        self._park()
        return sent

    def tidy(self) -> None:
        """Give back slots for which no callback is due, and record failures since the last call. On any thread."""
        self._give_back()
        seq, at, words = ctypes.c_int64(), ctypes.c_int64(), ctypes.create_string_buffer(WORDS)
        while self._library.ddptrace_failure(ctypes.byref(seq), ctypes.byref(at), words, WORDS):
            said = failure_words(RuntimeError(words.value.decode("utf-8", "replace")))
            self._recorder.event(Kind.DONE, 1, self._recorder.intern(said), at.value, at.value, seq.value)

    def stop(self) -> None:
        """Write nothing from now on: the recorder may be closed."""
        self.is_sending = False
        self.forget()
        self._library.ddptrace_let_go()
        self._park()

    def _take_seqs(self) -> int:
        """Take as many seqs in a row as the plan has buckets, whatever other threads do. Return the first."""
        last = next(itertools.islice(self._seqs, len(self._nbytes) - 1, None))
        return last - len(self._nbytes) + 1

    def _slots(self) -> int | None:
        """Return the address of the first slot for the records of a backward; None if there is no room in a row."""
        lent = _Lent()
        stretch = self._recorder.lend(EACH * len(self._nbytes), lent, self._unused)
        if stretch is None:
            return None
        self._lent = lent
        return lent.take(stretch)

    def _park(self) -> None:
        if self._lent is not None:
            self._waiting.append(self._lent)
            self._lent = None
        self._give_back()

    def _give_back(self) -> None:
        """Give back the slots of earlier backwards, once no callback is due."""
        waiting = list(self._waiting)
        if len(self):
            return
        for lent in waiting:
            lent.give_back()
            with contextlib.suppress(ValueError):  # another thread was faster
                self._waiting.remove(lent)


class _Lent:
    """Slots of a mapped file that compiled code writes into. The file stays mapped as long as they are lent."""

    def __init__(self) -> None:
        self._hold: list[ctypes.c_char] = []

    def take(self, stretch: Stretch) -> int | None:
        """Return the address of the first slot; None if the segment was closed meanwhile."""
        self.stretch = stretch
        with contextlib.suppress(ValueError):
            self._hold.append(ctypes.c_char.from_buffer(stretch.segment.view, stretch.offset))
        return ctypes.addressof(self._hold[0]) if self._hold else None

    def give_back(self) -> None:
        self._hold.clear()
        self.stretch.segment.lent_to.discard(self)
