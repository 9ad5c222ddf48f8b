"""The short way for the buckets that the C++ of stock DDP sends in backward.

Between matrix products, which push Python out of the processor's caches, each line costs tens of times what it costs
elsewhere. So this reads only what changes from bucket to bucket. The rest is known from the first bucket of the same
reducer, which went the long way (`calls.py`). Each call is recorded at once: a backend may end the process in it.

`compiled.cpp` does the same without Python. Before a backward it gets a plan of the buckets; afterwards it answers
which of them came, and where their records are.

Every bucket goes through Python once, in the first backward with these buckets: what the tap reports of them, in order,
is the plan. A bucket that differs from the plan goes through Python again, with the rest of that backward; the next
backward makes a new plan.

backward    1 by Python: learned    2 .. compiled    9 another bucket: by Python    10 learned    11 .. compiled
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import sys
import time
from collections import deque
from typing import Any, Final

import torch
import torch.autograd.profiler as autograd_profiler
import torch.distributed as dist

from ddptrace.capture.collectives.compiled import WORDS
from ddptrace.capture.collectives.completions import Completions
from ddptrace.capture.collectives.groups import Groups
from ddptrace.capture.collectives.tap import Operator
from ddptrace.capture.surface import failure_words
from ddptrace.record import Recorder
from ddptrace.record.segment import Stretch
from ddptrace.schema import EVENT, GUARD, CallFlag, Kind

_now = time.perf_counter_ns

CALL = int(Kind.CALL)
ALL_REDUCE: Final = "all_reduce"
"""Its first argument is a list of tensors; for a bucket, of one tensor."""

Alike = tuple[Operator, int, torch.dtype, int, int, int, int, bool]
"""What the buckets of one reducer have in common: op, number of arguments, dtype, flags, string ids of dtype, op and
group, whether completions are stamped. `Alike` and `Sent` are plain tuples: named fields take longer."""

EACH: Final = 2  # records of a bucket: of its call and of its end
DONE: Final = EVENT.pack(Kind.DONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, GUARD)


class Sent(tuple[int, int, int, int, Alike]):
    """One bucket on its way, outside any profiler window: seq, launch, bytes, reducer, and what all have in common."""

    __slots__ = ()


class BucketSends:
    """`sent`: by reducer, the bytes of its buckets in this backward."""

    def __init__(
        self, recorder: Recorder, completions: Completions, seqs: itertools.count[int], groups: Groups, engine: Any
    ) -> None:
        """`engine`: the code of the frame below what C++ issues in backward."""
        self.sent: dict[int, list[int]] = {}
        self._recorder = recorder
        self._completions = completions
        self._groups = groups
        self._seqs = seqs
        self._engine = engine
        self._alike: dict[int, Alike] = {}
        self.compiled: CompiledSends | None = None

    def learn(
        self,
        reducer: int,
        op: Operator,
        args: tuple[Any, ...],
        tensor: torch.Tensor,
        ids: tuple[int, int, int, int],
        *,
        is_stamped: bool,
    ) -> None:
        """Learn from a bucket that went the long way. `ids`: its flags, string ids of dtype, op and group."""
        is_async = op.is_async is not None and len(args) <= op.is_async  # the default
        if is_async and op.name == ALL_REDUCE:
            self._alike[reducer] = op, len(args), tensor.dtype, *ids, is_stamped
            if is_stamped and self.compiled is not None and tensor.layout is _STRIDED:
                _, dtype, name, group = ids
                self.compiled.learn(tensor.nbytes, reducer, name, group, dtype)

    def forget(self, reducer: int) -> None:
        """Forget a reducer that is gone; no other reducer gets its number."""
        self.sent.pop(reducer, None)
        self._alike.pop(reducer, None)

    def tell(self, reducer: int, nbytes: int) -> None:
        """Note a bucket that C++ has sent for this reducer."""
        sent = self.sent.get(reducer)
        if sent is not None:
            sent.append(nbytes)

    def begun(self, reducer: int, op: Operator, args: tuple[Any, ...]) -> Sent | None:
        """Begin the record of a bucket; None if the call differs from the learned pattern.

        Reads the stack at a fixed depth: call it only from `Collectives.before`.
        """
        alike = self._alike.get(reducer)
        if alike is None or alike[0] is not op or alike[1] != len(args) or autograd_profiler._is_profiler_enabled:
            return None
        try:
            if _frame(3).f_code is not self._engine:
                return None
        except ValueError:  # no frame at all: the engine's own thread
            pass
        if len(self._alike) > 1 and self._groups.name_id(dist.ProcessGroup.unbox(args[op.group])) != alike[6]:
            return None  # several threads may run backwards at once
        tensors = args[0]
        tensor = tensors[0]
        if len(tensors) > 1 or tensor.dtype is not alike[2] or tensor.layout is not _STRIDED:
            return None
        nbytes = tensor.nbytes
        return Sent((next(self._seqs), _now(), nbytes, reducer, alike))

    def issued(self, sent: Sent, issued: int, work: Any) -> None:
        seq, launch, nbytes, reducer, (_, _, _, flags, dtype, name, group, is_stamped) = sent
        self._recorder.event(CALL, flags, name, launch, issued, seq, nbytes, 0, group, 0, reducer, dtype)
        self.tell(reducer, nbytes)
        if is_stamped:
            self._completions.follow(seq, _unbox(work).get_future())
            if self.compiled is not None:
                self.compiled.learn(nbytes, reducer, name, group, dtype)


_frame, _unbox, _STRIDED = sys._getframe, dist.Work.unbox, torch.strided


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
