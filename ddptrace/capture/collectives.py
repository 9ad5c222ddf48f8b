"""What is recorded of a collective: launch, bytes, group, who issued it; its completion; the host's waits for it.

host     launch ──issued            wait┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┐
backend          ┄┄queue┄┄ [exec ───────────────] done ┘
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
import torch.distributed as dist
from torch._C._profiler import _RecordFunctionFast

from ddptrace.capture.groups import Groups
from ddptrace.capture.surface import Surface, ThreadState
from ddptrace.capture.tap import Op
from ddptrace.record import Recorder
from ddptrace.schema import RANGE_PREFIX, CallFlag, Kind

_now = time.perf_counter_ns

STAMPED_NBYTES = 64 << 10
"""Outside a profiler window, completions of smaller calls that no reducer issued are not stamped: a Python callback for
each of many small queued collectives would slow Gloo itself."""

SYNC, NATIVE = int(CallFlag.SYNC), int(CallFlag.NATIVE)
CALL, DONE, WAIT = int(Kind.CALL), int(Kind.DONE), int(Kind.WAIT)
"""As plain integers: arithmetic on enumerations costs as much as a record."""

Token = tuple[int, int, int, int, int, bool, int, bool]
"""Seq, launch, bytes in, bytes out, flags, profiling, reducer, whether Python holds the Work."""


class Collectives:
    """The tap's watcher: one CALL record per collective, one DONE when its future completes."""

    def __init__(self, recorder: Recorder, surface: Surface, groups: Groups, thread: ThreadState) -> None:
        self.seqs = itertools.count(1)
        self.reducer = 0  # number of the reducer whose gradient was accumulated last, 0 outside backward
        self._recorder = recorder
        self._surface = surface
        self._groups = groups
        self._thread = thread
        self._seq_of: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._waited_since: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._no_future: set[str] = set()
        self._engine = _engine_code()
        self.native: Callable[[int, int], None] = lambda reducer, nbytes: None

    def before(self, op: Op, args: tuple[Any, ...]) -> Token | None:
        if not self._surface.on:
            return None
        try:
            nbytes_in = nbytes_out = 0
            for i in op.inputs:
                nbytes_in += _nbytes(args[i])
            for i in op.outputs:
                nbytes_out += _nbytes(args[i])
            own, flags, profiling = self._thread.bucket, self._flags(op, args), autograd_profiler._is_profiler_enabled
            held = bool(own) or not flags & NATIVE
            return next(self.seqs), _now(), nbytes_in, nbytes_out, flags, profiling, own or self.reducer, held
        except Exception as error:  # training must not see it
            self._surface.failed(error)
            return None

    def within(self, token: Token) -> AbstractContextManager[Any] | None:
        return _RecordFunctionFast(f"{RANGE_PREFIX}{token[0]}") if token[5] else None

    def after(self, token: Token, op: Op, args: tuple[Any, ...], work: Any) -> None:
        issued = _now()
        try:
            seq, launch, nbytes_in, nbytes_out, flags, _, reducer, _ = token
            group = dist.ProcessGroup.unbox(args[op.group])
            tensor = _first_tensor(args, op)
            self._recorder.event(
                CALL, flags, self._recorder.intern(op.name), launch, issued, seq, nbytes_in, nbytes_out,
                self._groups.name_id(group), self._thread.hook, reducer, self._dtype_id(tensor),
            )  # fmt: skip
            if flags & NATIVE and reducer:
                self.native(reducer, nbytes_in)
            if work is not None:
                self._follow(token, op.name, dist.Work.unbox(work), tensor)
        except Exception as error:  # training must not see it
            self._surface.failed(error)

    def wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A `Work.wait` that records how long the host was blocked."""

        def wait(work: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not self._surface.on:
                return original(work, *args, **kwargs)
            begin, returned = _now(), False
            try:
                out = original(work, *args, **kwargs)
                returned = True
                return out
            finally:
                self._waited(work, begin, returned=returned)

        return wait

    def done(self, seq: int) -> Callable[[Any], None]:
        """A future's callback: the operation is over, here and now."""

        def stamp(future: Any) -> None:
            at = _now()
            self._recorder.event(DONE, 0, 0, at, at, seq)

        return stamp

    def _flags(self, op: Op, args: tuple[Any, ...]) -> int:
        is_sync = op.is_async is not None and len(args) > op.is_async and not args[op.is_async]
        native = self._thread.bucket or self._is_native()
        return (SYNC if is_sync else 0) | (NATIVE if native else 0)

    def _is_native(self) -> bool:
        """Issued from C++ during backward: below the tap lies the engine's own entry, or no Python frame at all."""
        try:
            return sys._getframe(4).f_code is self._engine
        except ValueError:
            return True

    def _follow(self, token: Token, name: str, work: Any, tensor: Any) -> None:
        seq, _, nbytes_in, nbytes_out, flags, profiling, reducer, held = token
        if held:
            self._thread.last_work = work
            self._seq_of[work] = seq
        wanted = profiling or (not flags & SYNC and (reducer or nbytes_in + nbytes_out >= STAMPED_NBYTES))
        # A CUDA future is complete once the kernel is queued: its stamp would say nothing.
        if wanted and name not in self._no_future and (tensor is None or tensor.device.type == "cpu"):
            try:
                work.get_future().add_done_callback(self.done(seq))
            except RuntimeError:
                self._no_future.add(name)  # send and receive have no future on Gloo

    def _waited(self, work: Any, begin: int, *, returned: bool) -> None:
        try:
            self._thread.last_work = None
            if not (returned or work.is_completed()):  # its time was up: the end of this wait is not the operation's
                self._waited_since.setdefault(work, begin)
                return
            begin = self._waited_since.pop(work, begin)
            self._recorder.event(WAIT, 0, 0, begin, _now(), self._seq_of.get(work, 0))
        except Exception as error:  # training must not see it
            self._surface.failed(error)

    def _dtype_id(self, tensor: Any) -> int:
        return 0 if tensor is None else self._recorder.intern(_dtype_name(tensor.dtype))


def _nbytes(value: Any) -> int:
    """Of a tensor, or of all in a list, at any depth; a sparse one counts as 0."""
    if isinstance(value, _TENSOR):
        return value.nbytes if value.layout is _STRIDED else 0
    total = 0
    if isinstance(value, _LISTS):
        for item in value:
            total += _nbytes(item)
    return total


_TENSOR, _STRIDED, _LISTS = torch.Tensor, torch.strided, (list, tuple)


def _first_tensor(args: tuple[Any, ...], op: Op) -> torch.Tensor | None:
    value = args[(op.inputs + op.outputs)[0]] if op.inputs + op.outputs else None
    while isinstance(value, list | tuple):
        value = value[0] if value else None
    return value if isinstance(value, torch.Tensor) else None


_dtype_names: dict[torch.dtype, str] = {}


def _dtype_name(dtype: torch.dtype) -> str:
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).removeprefix("torch.")
    return name


def _engine_code() -> Any:
    """The Python function that enters the autograd engine: the frame below what C++ does in backward."""
    from torch.autograd import graph

    return graph._engine_run_backward.__code__
