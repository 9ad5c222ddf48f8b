"""What `compiled.cpp` is told before a backward, and asked after it: which buckets come, and where their records go.

Every bucket goes through Python once, in the first backward with these buckets: the tap tells of each, in order, and
that is the plan. One that is not as planned goes through Python again, and with it the rest of that backward; in the
next one the plan is made anew.

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
    """Of the one reducer that stock DDP has in a process. `is_sending`: a backward is on in which compiled code takes
    the buckets; it records them, but in steps that are not to be recorded. `taken`: buckets recorded by it so far."""

    def __init__(self, library: Any, recorder: Recorder, seqs: itertools.count[int]) -> None:
        self.is_sending = False
        self.taken = 0
        self._library = library
        self._recorder = recorder
        self._seqs = seqs
        self._nbytes: list[int] = []  # of the plan's buckets
        self._is_known = self._is_learning = self._is_recorded = False
        self._lent: _Lent | None = None  # in this backward
        self._waiting: deque[_Lent] = deque()  # of earlier ones, for callbacks that were due
        self._unused: Stretch | None = None
        library.ddptrace_let_go()

    def __len__(self) -> int:
        """Buckets whose end is still to be recorded."""
        return int(self._library.ddptrace_under_way())

    def learn(self, nbytes: int, reducer: int, name: int, group: int, dtype: int) -> None:
        """The tap has recorded this bucket, which this thread has just sent. The numbers are those of its record."""
        if self._is_known:  # it is none of those that were to come
            self.forget()
            if self.is_sending and not self._library.ddptrace_end():  # but the first of others
                self._nbytes, self._is_learning = [], True
        if not self._is_learning:
            return
        self._nbytes.append(nbytes)
        call = EVENT.pack(Kind.CALL, CallFlag.NATIVE, 0, name, 0, 0, 0, nbytes, 0, group, 0, reducer, dtype, GUARD)
        if not self._library.ddptrace_learn(call, DONE):
            self.forget()

    def forget(self) -> None:
        """The plan, and what of this backward would be learned."""
        self._is_known = self._is_learning = False
        self._library.ddptrace_forget()

    def begin(self, *, is_recorded: bool) -> None:
        """A backward, on this thread. Where there is no plan, or no room for its records in a row, Python takes all."""
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
        """Something else is sent: what follows in this backward is Python's, so that records stay in order."""
        self._library.ddptrace_end()

    def end(self) -> list[int]:
        """That backward. Bytes of each bucket that was recorded here."""
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
        """On any thread: give back what no callback is due for, and record what has failed since the last time, whose
        words become text here."""
        self._give_back()
        seq, at, words = ctypes.c_int64(), ctypes.c_int64(), ctypes.create_string_buffer(WORDS)
        while self._library.ddptrace_failure(ctypes.byref(seq), ctypes.byref(at), words, WORDS):
            said = failure_words(RuntimeError(words.value.decode("utf-8", "replace")))
            self._recorder.event(Kind.DONE, 1, self._recorder.intern(said), at.value, at.value, seq.value)

    def stop(self) -> None:
        """Nothing is written from now on: the recorder may be closed."""
        self.is_sending = False
        self.forget()
        self._library.ddptrace_let_go()
        self._park()

    def _take_seqs(self) -> int:
        """The first of so many in a row, taken in one go whatever other threads do."""
        last = next(itertools.islice(self._seqs, len(self._nbytes) - 1, None))
        return last - len(self._nbytes) + 1

    def _slots(self) -> int | None:
        """The address of the first of those for all records of a backward. A backward that sends nothing uses none."""
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
        """What waited before it was seen that no callback is due."""
        waiting = list(self._waiting)
        if len(self):
            return
        for lent in waiting:
            lent.give_back()
            with contextlib.suppress(ValueError):  # another thread was faster
                self._waiting.remove(lent)


class _Lent:
    """Slots of a mapped file that compiled code writes into: it is not unmapped meanwhile."""

    def __init__(self) -> None:
        self._hold: list[ctypes.c_char] = []

    def take(self, stretch: Stretch) -> int | None:
        """The address of the first; None where the segment was closed under us."""
        self.stretch = stretch
        with contextlib.suppress(ValueError):
            self._hold.append(ctypes.c_char.from_buffer(stretch.segment.view, stretch.offset))
        return ctypes.addressof(self._hold[0]) if self._hold else None

    def give_back(self) -> None:
        self._hold.clear()
        self.stretch.segment.lent_to.discard(self)
