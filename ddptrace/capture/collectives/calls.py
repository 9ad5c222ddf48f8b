"""Records of a collective: its call (launch, bytes, group, issuer), its completion, and the host's waits for it.

host     launch ──issued            wait┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┐
backend          ┄┄queue┄┄ [exec ───────────────] done ┘
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Final

import torch
import torch.autograd.profiler as autograd_profiler
import torch.distributed as dist
from torch._C._profiler import _RecordFunctionFast

from ddptrace.capture.by_identity import IdentityMap
from ddptrace.capture.collectives.bucket_sends import BucketSends, Sent
from ddptrace.capture.collectives.completions import MANY, CollectivesInWindow, Completions, is_done
from ddptrace.capture.collectives.groups import Groups, sent_to_each, write_splits
from ddptrace.capture.collectives.tap import Operator
from ddptrace.capture.collectives.unit_sends import SHORT_MAX, Alike, SentForUnit, UnitSends
from ddptrace.capture.device.timed_events import SMALL_NBYTES, DeviceTimer
from ddptrace.capture.origins.call_sites import CallSites
from ddptrace.capture.surface import Surface, ThreadState, failure_words
from ddptrace.ops import ALL_TO_ALL, family_of
from ddptrace.record import Recorder
from ddptrace.schema import RANGE_PREFIX, CallFlag, Kind

_now = time.perf_counter_ns

STAMPED_NBYTES = 64 << 10
"""Outside a profiler window, completions of smaller calls that no reducer or unit issued are not stamped: a Python
callback for each of many small queued collectives would slow Gloo itself."""

SYNC, NATIVE = int(CallFlag.SYNC), int(CallFlag.NATIVE)
PROFILED, DEVICE = int(CallFlag.PROFILED), int(CallFlag.DEVICE)
CALL, DONE, WAIT, ORIGIN = int(Kind.CALL), int(Kind.DONE), int(Kind.WAIT), int(Kind.ORIGIN)
"""As plain integers: arithmetic on enumerations costs as much as a record."""

Token = tuple[int, int, int, int, int, bool, int, bool, int, int, bool]
"""Seq, launch, bytes in, bytes out, flags, profiling, reducer, whether Python holds the Work, string ids of op and
group, and whether the program waits for the tensors (a functional collective)."""


class Collectives:
    """The tap's watcher: one CALL record per collective, one DONE when its future completes."""

    def __init__(
        self, recorder: Recorder, surface: Surface, groups: Groups, thread: ThreadState, sites: CallSites
    ) -> None:
        self.seqs = itertools.count(1)
        self.completions = Completions(recorder)
        self.in_window = CollectivesInWindow()
        self.device: DeviceTimer | None = None  # that the training computes on, once it is known
        self.meets_device: Callable[[torch.device], object] | None = None  # called for the first collective on one
        self.reducer = 0  # the only reducer, or that of the last accumulated gradient; 0 outside backward
        self._recorder = recorder
        self._surface = surface
        self._groups = groups
        self._thread = thread
        self._seq_of: IdentityMap[Any, int] = IdentityMap()
        self._batch_of: IdentityMap[Any, tuple[int, ...]] = IdentityMap()
        self._waited_since: IdentityMap[Any, int] = IdentityMap()
        self._no_future: set[str] = set()
        self._awaited_on_device = BoundedSeqs()
        self._functional = FunctionalWaits()
        self._engine = _engine_code()
        self.buckets = BucketSends(recorder, self.completions, self.seqs, groups, self._engine)
        self._sites = sites
        self._of_units = UnitSends(recorder, self.completions, self.seqs, groups, sites, thread, self._seq_of)
        self.messages = ExpectedMessages()

    @property
    def is_live(self) -> bool:
        """Whether collectives are recorded now."""
        return self._surface.live

    def before(self, op: Operator, args: tuple[Any, ...]) -> Token | Sent | SentForUnit | None:
        if not self._surface.live:
            return None
        try:
            compiled = self.buckets.compiled
            if compiled is not None and compiled.is_sending:
                compiled.interrupt()
            sent = self.buckets.begun(self.reducer, op, args) if self.reducer else None
            if sent is not None:
                if self.device is not None:
                    self._thread.ready = self.device.ready(at_end=True)
                return sent
            if len(self.completions.noted) >= MANY:
                self.completions.write()
            nbytes_in = nbytes_out = 0
            for i in op.inputs:
                nbytes_in += nbytes_of(args[i])
            for i in op.outputs:
                nbytes_out += nbytes_of(args[i])
            part = self._thread.unit
            if part is not None and self.device is None and not self.reducer:
                again = self._of_units.begun(part, op, args, nbytes_in, nbytes_out)
                if again is not None:
                    return again
            own, profiling = self._thread.bucket, autograd_profiler._is_profiler_enabled
            caller = None if own else self._caller()
            if caller is None:
                source = None
            elif part is None:
                source = self._sites.of(caller)
            else:
                source = self._sites.of_unit(caller, part.anchors, op.name)
            functional = caller is not None and caller.f_code.co_filename == ISSUER
            is_sync = op.is_sync(args) and not functional  # what C++ says of these does not count
            flags = (SYNC if is_sync else 0) | (0 if source else NATIVE) | (PROFILED if profiling else 0)
            held = bool(own or source)
            reducer = own or self.reducer
            name = self._recorder.intern(op.name)
            group = self._groups.name_id(dist.ProcessGroup.unbox(args[op.group]))
            if self.device is not None:
                tensor = first_tensor(args, op)
                is_there = tensor is not None and not tensor.is_cpu
                self._thread.ready = self.device.ready(at_end=bool(reducer)) if is_there else None
            seq, launch = next(self.seqs), _now()
            if source is not None:  # before the call: a backend may end the process in it
                peer = 0 if op.peer is None else args[op.peer] + 1
                self._recorder.event(
                    ORIGIN,
                    source.origin,
                    source.site,
                    launch,
                    launch,
                    seq,
                    nbytes_in,
                    nbytes_out,
                    source.module,
                    peer,
                    name if name <= SHORT_MAX else 0,
                    group if group <= SHORT_MAX else 0,
                )
            if family_of(op.name) is ALL_TO_ALL:
                write_splits(self._recorder, seq, launch, sent_to_each(op, args, nbytes_in))
            if part is None and self.messages.expected:
                part = self.messages.take(args, op)
            if part is not None:
                part.call(seq, launch, op.name)
            return seq, launch, nbytes_in, nbytes_out, flags, profiling, reducer, held, name, group, functional
        except Exception as error:  # training must not see it
            if not is_symbolic(first_tensor(args, op)):  # nothing is sent of what a compiler traces
                self._surface.failed(error)
            return None

    def within(self, token: Token | Sent | SentForUnit) -> AbstractContextManager[Any] | None:
        return (
            None
            if isinstance(token, Sent | SentForUnit) or not token[5]
            else _RecordFunctionFast(f"{RANGE_PREFIX}{token[0]}")
        )

    def after(self, token: Token | Sent | SentForUnit, op: Operator, args: tuple[Any, ...], work: Any) -> None:
        issued = _now()
        try:
            if isinstance(token, SentForUnit):
                self._of_units.issued(token, issued, work)
                return
            if isinstance(token, Sent):
                self.buckets.issued(token, issued, work)
                if self.device is not None:
                    self._time(token[0], token[1], token[4][6], dist.Work.unbox(work), followed=True)
                return
            seq, launch, nbytes_in, nbytes_out, flags, _, reducer, held, name, group, functional = token
            work = None if work is None else dist.Work.unbox(work)
            tensor = first_tensor(args, op)
            dtype = self._dtype_id(tensor)
            if tensor is not None and not tensor.is_cpu:
                flags |= DEVICE
                if self.meets_device is not None:
                    meets, self.meets_device = self.meets_device, None
                    meets(tensor.device)
            self._recorder.event(
                CALL, flags, name, launch, issued, seq, nbytes_in, nbytes_out, group, self._thread.hook, reducer, dtype
            )
            batch = self._thread.batches.get(group)
            if work is None and batch is not None:
                batch.append(seq)
            if self.device is not None:
                small = nbytes_in + nbytes_out <= SMALL_NBYTES and not family_of(op.name).is_message
                if work is None and batch is None:
                    self._ran_here(seq, launch)
                else:
                    self._time(seq, launch, group, work, followed=bool(reducer) or small)
                    if held and flags & DEVICE and not reducer:
                        self._awaited_on_device.add(seq)
            if functional:
                self._functional.made(op, args, seq)
            is_stamped = work is not None and self._follow(token, flags, op.name, work)
            part = self._thread.unit
            if part is not None and not functional:
                alike = Alike(nbytes_in, nbytes_out, name, dtype, is_stamped)
                self._of_units.learn(part, op, alike, flags, followed=held and work is not None)
            if flags & NATIVE and reducer:
                self.buckets.tell(reducer, nbytes_in)
                if flags | DEVICE == NATIVE | DEVICE and not held and tensor is not None:
                    self.buckets.learn(reducer, op, args, tensor, (flags, dtype, name, group), is_stamped=is_stamped)
        except Exception as error:  # training must not see it
            self._surface.failed(error)

    def _time(self, seq: int, launch: int, group: int, work: Any, *, followed: bool) -> None:
        ready, self._thread.ready = self._thread.ready, None
        if self.device is not None:
            self.device.issued(seq, launch, group, work if followed else None, ready)

    def _ran_here(self, seq: int, launch: int) -> None:
        """NCCL runs a call that is not asynchronous on the stream that launches it, and returns no Work of it."""
        ready, self._thread.ready = self._thread.ready, None
        if self.device is not None:
            self.device.ran_here(seq, launch, ready)

    def batch_begins(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make a `ProcessGroup._start_coalescing`: what this thread launches in the group from then on starts at the
        end of the batch, and shares its Work."""

        def start(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            out = original(group, *args, **kwargs)  # which raises where the backend has no batches
            if self._surface.live or self._thread.batches:
                self._surface.call(self._open_batch, group)
            return out

        return start

    def _open_batch(self, group: Any) -> None:
        self._thread.batches[self._groups.name_id(group)] = []  # one of before may never have ended

    def batch_ends(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make a `ProcessGroup._end_coalescing`, in which the backend starts the batch."""

        def end(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            batch = self._surface.call(self._take_batch, group) if self._thread.batches else None
            if not batch:
                return original(group, *args, **kwargs)
            with contextlib.ExitStack() as ranges:
                if autograd_profiler._is_profiler_enabled:
                    for seq in batch:
                        ranges.enter_context(_RecordFunctionFast(f"{RANGE_PREFIX}{seq}"))
                work = original(group, *args, **kwargs)
            if work is not None:
                self._surface.call(self._batched, work, tuple(batch))
            return work

        return end

    def _take_batch(self, group: Any) -> list[int] | None:
        return self._thread.batches.pop(self._groups.name_id(group), None)

    def _batched(self, work: Any, batch: tuple[int, ...]) -> None:
        self._thread.last_work = work
        self._seq_of[work] = batch[-1]
        self._batch_of[work] = batch

    def awaits(self, tensor: torch.Tensor) -> tuple[int, int, Any] | None:
        """Return the seq of the call that made the tensor, now, and on a device an event before the wait; None if that
        call is unknown."""
        if not self._surface.on:
            return None
        try:
            seq = self._functional.take(tensor)
            if not seq:
                return None
            return seq, _now(), None if self.device is None or tensor.is_cpu else self.device.here()
        except Exception as error:  # training must not see it
            self._surface.failed(error)
            return None

    def awaited(self, token: tuple[int, int, Any]) -> None:
        try:
            seq, begin, before = token
            self._recorder.event(WAIT, 0, 0, begin, _now(), seq)
            if self.device is not None and before is not None:
                self.device.waited(seq, begin, before)
        except Exception as error:  # training must not see it
            self._surface.failed(error)

    def wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make a `Work.wait` that records how long the host was blocked."""

        def wait(work: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not (self._surface.live or self._is_recorded(work)):
                return original(work, *args, **kwargs)
            before = [] if self.device is None else self._surface.call(self._before_wait, work, self.device) or []
            begin = _now()
            try:
                out = original(work, *args, **kwargs)
            except BaseException as error:
                self._waited(work, begin, error)
                raise
            for seq, event in before:
                self.device.waited(seq, begin, event)  # type: ignore[union-attr]
            self._waited(work, begin, None)
            return out

        return wait

    def _caller(self) -> FrameType | None:
        """Return the frame that issues the collective; None if C++ issues it in backward: then the frame below the tap
        is the entry of the autograd engine, or there is none."""
        try:
            frame = sys._getframe(3)
        except ValueError:
            return None
        return None if frame.f_code is self._engine else frame

    def _follow(self, token: Token, flags: int, name: str, work: Any) -> bool:
        """Follow the completion if that is wanted and possible, and return whether it is followed."""
        seq, _, nbytes_in, nbytes_out, _, profiling, reducer, held, _, _, functional = token
        if (
            held and not functional
        ):  # nobody waits for the Work of a functional call: it, and its tensors, would be kept
            self._thread.last_work = work
            self._seq_of[work] = seq
        if profiling and not flags & DEVICE:
            self.in_window.add(work)
        of_unit = reducer or self._thread.unit is not None
        wanted = profiling or of_unit or (not flags & SYNC and nbytes_in + nbytes_out >= STAMPED_NBYTES)
        # A CUDA future is complete as soon as the kernel is queued: its stamp would mean nothing.
        if not wanted or flags & DEVICE or name in self._no_future:
            return False
        try:
            (self.completions.follow_here if profiling else self.completions.follow)(seq, work.get_future())
        except RuntimeError:
            self._no_future.add(name)  # send and receive have no future on Gloo
            return False
        return True

    def _waited(self, work: Any, begin: int, raised: BaseException | None) -> None:
        try:
            self._thread.last_work = None
            if raised is not None and not is_done(work):  # a timeout: the collective goes on
                if work not in self._waited_since:
                    self._waited_since[work] = begin
                return
            begin, end, seq = self._waited_since.pop(work) or begin, _now(), self._seq_of.get(work) or 0
            self._recorder.event(WAIT, 0, 0, begin, end, seq)
            if seq and isinstance(raised, Exception):
                self._recorder.event(DONE, 1, self._recorder.intern(failure_words(raised)), end, end, seq)
        except Exception as error:  # training must not see it
            self._surface.failed(error)

    def _before_wait(self, work: Any, device: DeviceTimer) -> list[tuple[int, Any]]:
        """Return the calls of a Work that no reducer issued, each with an event before a stream waits for them."""
        seqs = self._batch_of.get(work) or (self._seq_of.get(work) or 0,)
        events = ((seq, device.here()) for seq in seqs if self._awaited_on_device.take(seq))
        return [(seq, event) for seq, event in events if event is not None]

    def _is_recorded(self, work: Any) -> bool:
        """Whether the call of this Work was recorded, in an earlier step."""
        return self._surface.on and len(self._seq_of) > 0 and work in self._seq_of

    def _dtype_id(self, tensor: Any) -> int:
        return 0 if tensor is None else self._recorder.intern(dtype_name(tensor.dtype))


MOST_TENSORS: Final = 10_000
"""Tensors that nobody has waited for yet; a program that never waits must not fill the memory."""


class BoundedSeqs:
    """Seqs of calls that may be waited for; a program that never waits does not fill the memory."""

    def __init__(self) -> None:
        self._seqs: set[int] = set()

    def add(self, seq: int) -> None:
        if len(self._seqs) >= MOST_TENSORS:
            self._seqs.clear()
        self._seqs.add(seq)

    def take(self, seq: int) -> bool:
        """Remove a seq, and return whether it was there."""
        found = seq in self._seqs
        self._seqs.discard(seq)
        return found


ISSUER: Final = torch._ops.__file__
"""The file of the frame that issues a functional collective: the program calls an operator, not a function of
torch.distributed."""


class FunctionalWaits:
    """Which call made the tensors that nobody has waited for yet, by the address of their data.

    Of a functional collective (DTensor, tensor parallelism, compiled code) the Work stays in C++, and the program waits
    for the tensor that it was given:

        all_reduce(x) ──▶ tensor ┄┄┄ wait_tensor(tensor) ┄┄┄┐
                        made                     take ─▶ the call
    """

    def __init__(self) -> None:
        self._seq_of: dict[int, int] = {}

    def made(self, op: Operator, args: tuple[Any, ...], seq: int) -> None:
        if len(self._seq_of) >= MOST_TENSORS:
            self._seq_of.clear()
        for i in op.outputs or op.inputs:
            for tensor in [args[i]] if isinstance(args[i], torch.Tensor) else args[i]:
                self._seq_of[tensor.data_ptr()] = seq

    def take(self, tensor: torch.Tensor) -> int:
        """Return the seq of the call that made the tensor; 0 if there is none, or if somebody has waited before."""
        return self._seq_of.pop(tensor.data_ptr(), 0)


class ExpectedMessages:
    """Sends and receives that are about to be issued, by the address of their tensors, with the `Part` of a unit
    (`capture/units/unit_records.py`) that they are for."""

    def __init__(self) -> None:
        self.expected: dict[int, Any] = {}

    def expect(self, tensors: Iterable[torch.Tensor], part: Any) -> None:
        if len(self.expected) >= MOST_TENSORS:
            self.expected.clear()
        for tensor in tensors:
            self.expected[tensor.data_ptr()] = part

    def take(self, args: tuple[Any, ...], op: Operator) -> Any:
        """Return the part that a call is for; None if nobody has expected it."""
        tensor = first_tensor(args, op) if family_of(op.name).is_message else None
        return None if tensor is None else self.expected.pop(tensor.data_ptr(), None)


def _engine_code() -> Any:
    """Return the code of the function that enters the autograd engine: the frame below what C++ issues in backward."""
    from torch.autograd import graph

    return graph._engine_run_backward.__code__


def nbytes_of(value: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in a list at any depth. A view counts only its own elements."""
    if isinstance(value, _TENSOR):
        return value.nbytes if value.layout is _STRIDED else _sparse_nbytes(value)
    total = 0
    if isinstance(value, _LISTS):
        for item in value:
            total += nbytes_of(item)
    return total


_TENSOR, _STRIDED, _LISTS = torch.Tensor, torch.strided, (list, tuple)


def _sparse_nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of its indices and values, which a backend sends; 0 for layouts that no backend takes."""
    if tensor.layout is not torch.sparse_coo:
        return 0
    return tensor._indices().nbytes + tensor._values().nbytes


def first_tensor(args: tuple[Any, ...], op: Operator) -> torch.Tensor | None:
    """Return the first input tensor; the first output if there is no input, as where another rank scatters."""
    for i in op.inputs + op.outputs:
        value = args[i]
        while isinstance(value, _LISTS):
            value = value[0] if value else None
        if isinstance(value, _TENSOR):
            return value
    return None


def is_symbolic(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and any(isinstance(size, torch.SymInt) for size in tensor.shape)


_dtype_names: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).removeprefix("torch.")
    return name
