"""Remote calls, seen from the caller: who called what where, with how many bytes, and when the result came.

caller   call ──issued                          done (or failed)
callee            [run ──────────────] answer ┘
backward                       gradients of arguments ◀── callee, of results ──▶ callee

The patched functions lie below `rpc_sync`, `rpc_async` and `remote`, so it does not matter when a program imported
those.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch._C._distributed_autograd import _current_context
from torch._C._distributed_rpc import PyRRef
from torch.distributed.rpc import api, internal
from torch.distributed.rpc.internal import PythonUDF, RPCExecMode

from ddptrace.capture.rpc.callee import Callee, function_name, is_internal
from ddptrace.capture.rpc.messages import (
    STAMP_NBYTES,
    Messages,
    Received,
    Stamp,
    Workers,
    gradient_nbytes,
    read_stamp,
    stamped,
    tensors_in,
    wire_nbytes,
)
from ddptrace.capture.rpc.waits import RpcWaits
from ddptrace.capture.surface import Patches, Surface
from ddptrace.record import Recorder
from ddptrace.schema import Kind, RpcFlag, RpcOp

_now = time.perf_counter_ns

REFERENCE_OPS: Final = {"to_here": RpcOp.TO_HERE, "backward": RpcOp.BACKWARD}
_counts = itertools.count(1)  # for the whole process and not one trace: a callee may be traced longer than its caller

MODULE: Final = "torch.distributed.optim.optimizer"


class Call(NamedTuple):
    id: int
    op: int
    function: int  # its interned name
    flags: int
    begin: int
    nbytes: int
    wants_nbytes: int


class _Thread(threading.local):
    op = RpcOp.RPC_SYNC
    pickled: tuple[int, str, int] | None = None  # begin, function and flags of the call that was serialized last


class RpcWatch:
    """Records RPC and RPC_DONE; `RpcWaits` records who is blocked, and `Callee` the other side. `settle` is called when
    the workers shut down, before and after they wait for each other: their last chance to exchange anything."""

    def __init__(self, recorder: Recorder, surface: Surface, settle: Callable[[], None]) -> None:
        self._recorder = recorder
        self._surface = surface
        self._settle = settle
        self._workers = Workers(recorder)
        self._messages = Messages(recorder, surface)
        self._callee = Callee(recorder, surface, self._workers, self._messages)
        self.under_way: set[int] = set()  # ids of calls whose future has no result yet
        self._waits = RpcWaits(recorder, surface, self.under_way)
        self._thread = _Thread()

    def install(self, patches: Patches, updates: DistributedUpdates) -> None:
        pickler = internal._InternalRPCPickler
        patches.replace(pickler, "serialize", self._serialize)
        patches.replace(pickler, "deserialize", self._deserialize)
        patches.replace(internal, "_get_current_rpc_agent", self._callee.raised)
        patches.replace(api, "_wait_all_workers", self._parting)
        patches.replace(api, "_invoke_rpc", lambda original: self._invoke_rpc(original, updates))
        for name in ("python_udf", "builtin", "torchscript"):
            patches.replace(api, f"_invoke_rpc_{name}", self._invoker(None, native=name != "python_udf"))
            patches.replace(api, f"_invoke_remote_{name}", self._invoker(RpcOp.REMOTE, native=name != "python_udf"))
        for name, op in REFERENCE_OPS.items():
            patches.replace(PyRRef, name, self._blocking(op))
        self._waits.install(patches)

    def _parting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _wait_all_workers(*args: Any, **kwargs: Any) -> Any:
            self._surface.call(self._settle)
            out = original(*args, **kwargs)
            self._surface.call(self._settle)  # rank 0 has published the run id before it came here
            return out

        return _wait_all_workers

    # Messages --------------------------------------------------------------------------------------------------------

    def _serialize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def serialize(pickler: Any, obj: Any) -> Any:
            begin = _now()
            try:
                out = original(pickler, obj)
            except BaseException:
                if not isinstance(obj, PythonUDF):
                    self._surface.call(self._callee.unanswerable)
                raise
            self._surface.call(self._serialized, begin, obj, out)
            return out

        return serialize

    def _serialized(self, begin: int, obj: Any, out: tuple[bytes, list[torch.Tensor]]) -> None:
        if isinstance(obj, PythonUDF):
            self._thread.pickled = begin, function_name(obj), RpcFlag.INTERNAL if is_internal(obj[0]) else 0
        else:
            self._callee.answered(obj, *out)

    def _deserialize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def deserialize(pickler: Any, payload: bytes, tensors: Sequence[torch.Tensor]) -> Any:
            value = original(pickler, payload, tensors)
            if isinstance(value, PythonUDF):
                return self._surface.call(self._callee.arrived, value, payload, tensors) or value
            self._surface.call(self._read, value, payload, tensors)
            return value

        return deserialize

    def _read(self, value: Any, payload: bytes, tensors: Sequence[torch.Tensor]) -> None:
        """A result was read. What torch returns in place of a call that it cannot read is not a result."""
        if not (isinstance(value, AttributeError) and read_stamp(payload)):
            self._messages.received(value, payload, tensors)

    # Calls -----------------------------------------------------------------------------------------------------------

    def _invoke_rpc(self, original: Callable[..., Any], updates: DistributedUpdates) -> Callable[..., Any]:
        def _invoke_rpc(to: Any, func: Any, rpc_type: Any, *args: Any, **kwargs: Any) -> Any:
            self._thread.op = RpcOp.RPC_SYNC if rpc_type is RPCExecMode.SYNC else RpcOp.RPC_ASYNC
            if not updates.found:
                self._surface.call(updates.look)
            return original(to, func, rpc_type, *args, **kwargs)

        return _invoke_rpc

    def _invoker(self, op: RpcOp | None, *, native: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Wrap torch's functions that send a call. `op` None: the one that `_invoke_rpc` noted on this thread."""
        describe = self._native_call if native else self._python_call

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def invoke(to: Any, what: Any, *rest: Any, **kwargs: Any) -> Any:
                call = self._surface.call(describe, op or self._thread.op, what, rest, kwargs)
                if call is None:
                    return original(to, what, *rest, **kwargs)
                if not native:
                    what = self._surface.call(_stamped, call, what) or what
                try:
                    sent = original(to, what, *rest, **kwargs)
                except BaseException as error:
                    self._surface.call(self._issued, call, to)
                    self._surface.call(self._ended, call, error)
                    raise
                self._surface.call(self._issued, call, to)
                self._surface.call(self._follow, call, sent)
                return sent

            return invoke

        return make

    def _python_call(self, op: RpcOp, payload: bytes, rest: tuple[Any, ...], _: dict[str, Any]) -> Call:
        """`rest` holds the tensors, the timeout and whether the function returns a future."""
        tensors, flags = rest[0], RpcFlag.ASYNC_EXECUTION if rest[-1] else 0
        pickled, self._thread.pickled = self._thread.pickled, None
        begin, name, own = pickled or (_now(), "", 0)
        return self._call(op, name, flags | own, begin, len(payload) + STAMP_NBYTES + wire_nbytes(tensors), tensors)

    def _native_call(self, op: RpcOp, name: str, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        tensors = [*tensors_in(rest), *tensors_in(kwargs)]
        return self._call(op, name, RpcFlag.NATIVE, _now(), wire_nbytes(tensors), tensors)

    def _call(self, op: int, name: str, flags: int, begin: int, nbytes: int, tensors: Sequence[torch.Tensor]) -> Call:
        wants = gradient_nbytes(tensors)
        known = self._workers.call_id(next(_counts)), op, self._recorder.intern(name)
        return Call(*known, flags, begin, nbytes, wants if wants and _in_autograd_context() else 0)

    def _issued(self, call: Call, to: Any) -> None:
        self._recorder.event(
            Kind.RPC,
            call.flags,
            call.function,
            call.begin,
            _now(),
            call.id,
            call.nbytes,
            call.wants_nbytes,
            self._workers.callee(to),
            0,
            call.op,
        )
        if call.op not in REFERENCE_OPS.values():
            self.under_way.add(call.id)
            self._waits.has_calls = True

    def _follow(self, call: Call, sent: Any) -> None:
        """`sent`: the future of the result; of a remote the reference, whose future completes when its owner has it."""
        future = sent._get_future() if call.op == RpcOp.REMOTE else sent
        future.add_done_callback(lambda done: self._surface.call(self._done, call, done))

    def _done(self, call: Call, future: Any) -> None:
        at = _now()
        try:
            value = future.value()
        except Exception as error:  # the call's own
            self._ended(call, error, at)
            return
        if call.op == RpcOp.REMOTE:
            self._finish(call, at, None)
        elif call.flags & RpcFlag.NATIVE:
            self._finish(call, at, self._messages.unpickled(value))
        else:
            self._finish(call, at, self._messages.carrying(value))

    def _ended(self, call: Call, error: BaseException, at: int = 0) -> None:
        """It failed: the callee raised, or it could not be sent, or its time was up."""
        late = type(error) is RuntimeError and "set timeout" in str(error)  # as torch words a timeout
        text = "timeout" if late else type(error).__name__
        self._finish(call, at or _now(), self._messages.refusal(), self._recorder.intern(text))

    def _finish(self, call: Call, at: int, received: Received | None, error: int = 0) -> None:
        number, nbytes = (received.number, received.nbytes) if received else (0, -1)
        self._recorder.event(Kind.RPC_DONE, 0, error, at, at, call.id, nbytes, number)
        self.under_way.discard(call.id)

    def _blocking(self, op: RpcOp) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Wrap the methods of a reference that block until the answer is there. Its owner calls nobody."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def method(rref: Any, *args: Any, **kwargs: Any) -> Any:
                call = self._surface.call(self._reference_call, op, rref)
                if call is None:
                    return original(rref, *args, **kwargs)
                try:
                    value = original(rref, *args, **kwargs)
                except BaseException as error:
                    self._surface.call(self._ended, call, error)
                    raise
                self._surface.call(self._fetched, call, _now(), value)
                return value

            return method

        return make

    def _reference_call(self, op: RpcOp, rref: Any) -> Call | None:
        if rref.is_owner():
            return None
        self._messages.forget_here()
        call = self._call(op, op.name.lower(), 0, _now(), -1, ())
        self._issued(call, rref.owner())
        return call

    def _fetched(self, call: Call, at: int, value: Any) -> None:
        if call.op != RpcOp.TO_HERE:  # it returns None, as calls of other threads may
            self._finish(call, at, None)
        else:
            self._finish(call, at, self._messages.carrying(value) or self._messages.unpickled(value))


def _stamped(call: Call, payload: bytes) -> bytes:
    return stamped(payload, Stamp(call.id, call.op, bool(call.flags & RpcFlag.ASYNC_EXECUTION)))


def _in_autograd_context() -> bool:
    try:
        _current_context()
    except RuntimeError:
        return False
    return True


class DistributedUpdates:
    """`watched`: wraps a method that is an update, so that it is recorded."""

    def __init__(self, patches: Patches, watched: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.found = False
        self._patches = patches
        self._watched = watched

    def look(self) -> None:
        kind = getattr(sys.modules.get(MODULE), "DistributedOptimizer", None)
        if kind is not None:
            self.found = True
            self._patches.replace(kind, "step", self._watched)
