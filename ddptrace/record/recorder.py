"""Writes `rank-<r>/records-*.bin`: each call packs one record into a mapped file.

The kernel owns the pages, so records survive a SIGKILL. Training never waits: a keeper thread allocates segments ahead
and deletes the oldest. If it cannot keep up, records are dropped and counted.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ddptrace.findings import KEEPER_FAILED, RECORDS_LOST, FindingKind
from ddptrace.record.descriptions import Description, Descriptions, Texts
from ddptrace.record.segment import Dropped, Segment, Stretch, file_limit
from ddptrace.record.store import Store
from ddptrace.schema import EVENT, GUARD, READY, READY_PER_RECORD, RECORD_NBYTES, Kind
from ddptrace.trace_options import Keep

KEEPER_PERIOD_S = 2.0

MOST_THREADS = 0xFFFF
"""The largest number of a thread that fits into a record. All further threads share it."""
GRACE_S = 0.02
"""A thread that was about to write into a segment has finished after this time."""

MOST_LENT = 8
"""At most one in this many slots of a segment is lent at once. A smaller rest of the segment stays empty."""

_pack_event = EVENT.pack_into
_now = time.perf_counter_ns


class _Thread(threading.local):
    """The calling thread's number in the records; 0 until it has one. Not keyed by ident, which the system reuses."""

    number = 0


class Recorder:
    """Appends records to a rank's folder from any thread. Once constructed, it never raises and never blocks.

    Args:
        folder: Returns the folder, which may be renamed meanwhile.
        chores: Functions that the keeper also calls at every beat; a failing one does not affect the others. A list may
            grow later.
        keep: Limit of what is kept on disk.

    Raises:
        OSError: Not even the first segment can be allocated. Only the constructor raises.
    """

    def __init__(
        self, folder: Callable[[], Path], chores: Sequence[Callable[[], None]] = (), keep: Keep | None = None
    ) -> None:
        self._folder = folder  # it may be renamed meanwhile
        self.dropped = Dropped()
        self._chores = chores
        self._thread = _Thread()
        self._threads: dict[int, int] = {}
        self._store = Store(folder, keep or Keep(), self.note, self._tell_gone)
        self._texts = Texts(self._raw, self._store.lasting_records)
        self._descriptions = Descriptions(self._texts, self._raw, self.is_stuck, self.note)
        self._lock = threading.RLock()  # a signal's handler may come here while its thread holds it
        self._retired: list[Segment] = []
        self._segment: Segment | None = self._store.make(())
        self._spare: Segment | None = None
        self._wake = threading.Event()
        self._closing = False
        self._full: Segment | None = None  # there was no spare to replace it
        self._is_short = False  # the keeper has tried to make a spare, and failed
        self._full_noted = self._failure_noted = False
        self.clock()
        self._provide_spare()
        self._keeper = threading.Thread(target=self._keep, name="ddptrace-recorder", daemon=True)
        try:
            self._keeper.start()
        except RuntimeError as error:  # the system gives no more threads
            for segment in (self._segment, self._spare):
                if segment is not None:
                    segment.close()
            raise OSError(errno.EAGAIN, f"no thread can be started for the records: {error}") from error

    # The hot path ----------------------------------------------------------------------------------------------------

    def event(
        self,
        kind: int,
        flags: int,
        name: int,
        begin: int,
        end: int,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        d: int = 0,
        e: int = 0,
        f: int = 0,
        g: int = 0,
    ) -> None:
        """Append one EVENT record; the fields are those of `schema.Kind`."""
        segment = self._segment
        if segment is None:
            return
        thread = self._thread.number or self._number_thread()
        offset = next(segment.offsets)
        if offset < segment.room:
            try:
                _pack_event(segment.view, offset, kind, flags, thread, name, begin, end, a, b, c, d, e, f, g, GUARD)
            except (struct.error, ValueError):  # a value out of its field's range, or the segment closed under us
                self.dropped.unwritable += 1
        elif self._roll(segment):
            self.event(kind, flags, name, begin, end, a, b, c, d, e, f, g)

    def intern(self, text: str) -> int:
        """Return the id of `text`. The first call writes the text."""
        known = self._texts.ids.get(text)
        return known if known is not None else self._texts.add(text)

    def lend(self, count: int, to: object, unused: Stretch | None = None) -> Stretch | None:
        """Lend `count` slots to another writer; None if the segment has no room for them.

        Their segment is neither finished nor unmapped while its `lent_to` holds `to`. `unused`: slots that were lent
        before; they are lent again if their count and the segment are still the same.
        """
        segment = self._segment
        if segment is None or count * RECORD_NBYTES > segment.room // MOST_LENT:  # slots that do not fit would be lost
            return None
        segment.lent_to.add(to)  # first, so that the segment is not finished meanwhile
        if unused is not None and unused.count == count and unused.segment is segment is self._segment:
            return unused
        offsets = list(itertools.islice(segment.offsets, count))  # atomic: no other thread takes a slot in between
        if offsets[-1] < segment.room:
            return Stretch(segment, offsets[0], count)
        segment.lent_to.discard(to)
        return None

    # Seldom ----------------------------------------------------------------------------------------------------------

    def describe(self, kind: Kind, text: str, *, flags: int = 0, begin: int | None = None, end: int = 0) -> None:
        """Record a description of the run with its text, at `begin` or now. Without room, it is written later."""
        began = _now() if begin is None else begin
        self._descriptions.add(
            Description(kind, flags, self.thread_number(), self._texts.number(), text, began, end, 0)
        )

    def window(self, file: str, begin: int, end: int, *, by_user: bool) -> None:
        """Record a WINDOW: `file` lies in the rank's folder and counts towards its limit."""
        number = self._texts.number()
        self._store.windows.add(number, file, begin, end)
        self._descriptions.add(Description(Kind.WINDOW, by_user, self.thread_number(), number, file, begin, end, 0))
        self.nudge()

    def has_room(self, nbytes: int) -> bool:
        """Whether a file of this size may be added to the folder: part of the disk is reserved for the program.

        Raises OSError if the folder is gone.
        """
        return min(self._store.free_nbytes(), file_limit()) >= nbytes

    def ready(self, reducer: int, backward: int, base: int, deltas: list[int], parameters: list[int]) -> None:
        """Append one READY record: at most `schema.READY_PER_RECORD` deltas and parameters."""
        count = len(deltas)
        if count < READY_PER_RECORD:
            pad = [0] * (READY_PER_RECORD - count)
            deltas, parameters = deltas + pad, parameters + pad
        self._raw(READY, Kind.READY, count, reducer, backward, base, *deltas, *parameters, 0, GUARD)

    def clock(self) -> None:
        """Record the monotonic clock and Unix time together: the tightest of a few brackets. Skipped without room."""
        if self.is_stuck():
            return
        width, begin, unix = min(_bracket() for _ in range(5))
        self.event(Kind.CLOCK, 0, 0, begin + width // 2, begin + width // 2, unix, width)

    def close(self) -> None:
        """Finish: accept no more records, cut the last segment to its length and mark it as the last."""
        self._closing = True
        self._wake.set()
        self._keeper.join(timeout=5)
        if not self._keeper.is_alive():
            self._tell_anew()
        self.clock()
        with self._lock:
            segment, self._segment = self._segment, None
            spare, self._spare = self._spare, None
        if segment is not None:
            self._seal_retired()
            self._finish(segment)
        if spare is not None and spare.close():
            with contextlib.suppress(Exception):  # a hook of the program may refuse it, by an error of any kind
                (self._folder() / spare.name).unlink()

    def nudge(self) -> None:
        """Have the keeper thread do its chores now."""
        self._wake.set()

    def abandon(self) -> None:
        """In a forked child: forget the parent's files without touching them."""
        self._segment = self._spare = None

    def _finish(self, segment: Segment) -> None:
        used = min(next(segment.offsets), segment.room) // RECORD_NBYTES
        segment.seal(used, dropped=self.dropped, final=True)
        if segment.close():  # only then no late write can hit a page that is gone
            with contextlib.suppress(Exception), (self._folder() / segment.name).open("r+b") as file:
                file.truncate((used + 1) * RECORD_NBYTES)  # a failure only leaves empty slots behind

    def _raw(self, shape: struct.Struct, *fields: object) -> bool:
        """Append one record of any shape. Returns False if it is lost."""
        segment = self._segment
        if segment is None:
            return False
        offset = next(segment.offsets)
        if offset < segment.room:
            try:
                shape.pack_into(segment.view, offset, *fields)
                return True
            except (struct.error, ValueError):
                self.dropped.unwritable += 1
        elif self._roll(segment):
            return self._raw(shape, *fields)
        return False

    def _roll(self, full: Segment) -> bool:
        """Replace `full` with the spare segment. Returns False if there is none: the record is lost, and counted."""
        with self._lock:
            if self._segment is not full:
                return self._segment is not None
            if self._spare is None:
                if self._is_short:
                    self.dropped.without_room += 1
                else:
                    self.dropped.in_bursts += 1
                if self._full is not full:  # from now on, the keeper retries at its own pace
                    self._full = full
                    self._wake.set()
                return False
            self._retired.append(full)
            self._segment, self._spare = self._spare, None
        self._wake.set()
        return True

    @property
    def segment(self) -> Segment | None:
        """The segment that records go into; None once closed."""
        return self._segment

    def number_of(self, native: int) -> int:
        """Return a thread's number in the records, by its native id; 0 if it has written none."""
        return self._threads.get(native, 0)

    def is_stuck(self) -> bool:
        """Whether a record would be lost now."""
        return self._spare is None and self._full is not None and self._full is self._segment

    def thread_number(self) -> int:
        """Return the calling thread's number in the records."""
        return self._thread.number or self._number_thread()

    def _number_thread(self) -> int:
        """Number the calling thread. A thread that Python did not start comes here with every callback, since its
        thread-local state does not outlive one."""
        native = threading.get_native_id()
        known = self._threads.get(native)
        if known is None and len(self._threads) + 1 >= MOST_THREADS:
            known = MOST_THREADS
        elif known is None:
            with self._lock:
                known = self._threads.setdefault(native, len(self._threads) + 1)
            self._thread.number = known
            self._descriptions.add(
                Description(Kind.THREAD, 0, known, self._texts.number(), _thread_name(), _now(), 0, native)
            )
        self._thread.number = known
        return known

    # The keeper's thread ---------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._closing:
            self._wake.wait(KEEPER_PERIOD_S)
            self._wake.clear()
            for chore in (self._provide_spare, self._tell_anew, self._tidy, self.clock, *self._chores):
                if not self._closing:
                    self._guarded(chore)

    def _guarded(self, chore: Callable[[], None]) -> None:
        """Run one chore. A failure does not end this thread, which the other chores need."""
        try:
            chore()
        except OSError:  # the folder was renamed under us
            pass
        except Exception as error:
            if not self._failure_noted:
                self._failure_noted = True
                self.note(
                    KEEPER_FAILED,
                    f"the keeper of the records failed ({type(error).__name__}: {error}): some records may be lost",
                )

    def _tidy(self) -> None:
        self._store.tidy(self._texts.unpaired())

    def _provide_spare(self) -> None:
        if self._spare is not None:
            return
        with contextlib.suppress(OSError):
            self._make_spare()
        self._seal_retired()
        if self._spare is None:  # now a sealed segment can be thinned to make room
            self._try_again()

    def _make_spare(self) -> None:
        self._spare = self._store.make(self._texts.unpaired())
        self._is_short = False

    def _try_again(self) -> None:
        try:
            self._make_spare()
        except OSError as error:
            self._is_short = True
            self._note_full(error)

    def _tell_anew(self) -> None:
        if self._segment is not None:
            self._descriptions.write_anew(self._provide_spare)

    def _note_full(self, error: OSError) -> None:
        if not self._full_noted:
            self._full_noted = True
            self.note(RECORDS_LOST, f"no room for more records ({error.strerror}): later records are lost")

    def note(self, kind: FindingKind, message: str) -> None:
        """Record a finding of this kind."""
        import json

        self.describe(Kind.NOTE, json.dumps({"code": kind.code, "message": message}))

    def _tell_gone(self, window: int, count: int) -> None:
        self._descriptions.add(Description(Kind.FILE_LET_GO, 0, self.thread_number(), window, None, _now(), 0, count))

    def _seal_retired(self) -> None:
        """Seal the segments before the current one once no thread writes into them."""
        if self._retired:
            time.sleep(GRACE_S)
        while self._retired and not self._retired[0].lent_to:
            self._store.seal(self._retired.pop(0), self.dropped)


def _bracket() -> tuple[int, int, int]:
    begin = _now()
    unix = time.time_ns()
    return _now() - begin, begin, unix


def _thread_name() -> str:
    """The thread's name, without making a `threading.Thread` for one that Python did not start."""
    known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return str(known.name) if known is not None else "native"
