"""The callee's side of a remote call: from the function's begin to its end, whoever called it, and what it gave back.

C++ keeps torch's entry (`_run_function`) from the time of init_rpc, so its argument is replaced instead: by a
`PythonUDF` whose function reports when it is fetched and when it is released, just before and just after its one call.
There is no Python frame of ours around the function: its traceback, which goes to the caller, is the same as without
tracing.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.distributed.rpc.internal import PythonUDF, RemoteException

from ddptrace.capture.rpc.messages import Messages, Stamp, Workers, read_stamp, wire_nbytes
from ddptrace.capture.surface import Surface
from ddptrace.record import Recorder
from ddptrace.schema import Kind, RpcFlag, RpcOp

_now = time.perf_counter_ns
_ident = threading.get_ident

INTERNAL_MODULES: Final = ("torch.distributed.rpc.api", "torch.distributed.rpc._utils")


class Callee:
    """Records RPC_RUN and RPC_ANSWER."""

    def __init__(self, recorder: Recorder, surface: Surface, workers: Workers, messages: Messages) -> None:
        self._recorder = recorder
        self._surface = surface
        self._workers = workers
        self._messages = messages
        # Message numbers by thread: of the run that ended last on it, and of the run whose result it serializes next.
        # The agent's threads are not Python's: thread-local values are gone each time one releases the interpreter.
        self._last: dict[int, int] = {}
        self._answers: dict[int, int] = {}

    def arrived(self, udf: Any, payload: bytes, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the call to pass on in place of `udf`; the two are equal."""
        watched = _Watched(*udf)
        watched.begins = functools.partial(self._surface.call, self._begins)
        watched.message = (read_stamp(payload), len(payload) + wire_nbytes(tensors), tuple(tensors))
        return watched

    def answered(self, result: Any, payload: bytes, tensors: Sequence[torch.Tensor]) -> None:
        """A result is on its way back: that of the previous run on this thread, if that run sends one."""
        number = self._answers.pop(_ident(), None)
        if number is not None:
            at, failed = _now(), isinstance(result, RemoteException)
            self._recorder.event(Kind.RPC_ANSWER, failed, 0, at, at, number, len(payload) + wire_nbytes(tensors))

    def unanswerable(self) -> None:
        """A result cannot be serialized: what this thread serializes next belongs to another run."""
        self._answers.pop(_ident(), None)

    def raised(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap a function of torch that is only called for the error message of the function that has just raised."""

        def agent() -> Any:
            self._surface.call(self._raised)
            return original()

        return agent

    def _raised(self) -> None:
        at = _now()
        number = None if _has_run_nothing(sys.exception()) else self._last.pop(_ident(), None)
        if number is not None:
            self._recorder.event(Kind.RPC_ANSWER, 1, 0, at, at, number, -1)

    def _begins(self, udf: Any, message: tuple[Stamp | None, int, tuple[torch.Tensor, ...]]) -> Any:
        stamp, nbytes, tensors = message
        number = next(self._messages.numbers)
        self._messages.watch_gradients(number, tensors)
        running = _Running(udf[0])
        flags = RpcFlag.INTERNAL if is_internal(udf[0]) else 0
        names = self._recorder.intern(function_name(udf)), self._workers.caller(stamp.call) if stamp else 0
        running.ends = functools.partial(self._surface.call, self._ends, stamp, nbytes, number, flags, *names, _now())
        return running

    def _ends(
        self, stamp: Stamp | None, nbytes: int, number: int, flags: int, name: int, caller: int, begin: int
    ) -> None:
        end = _now()
        call, op, later = stamp or (0, RpcOp.REMOTE, False)
        flags |= RpcFlag.ASYNC_EXECUTION if later else 0
        self._recorder.event(Kind.RPC_RUN, flags, name, begin, end, call, nbytes, number, caller)
        self._last[_ident()] = number
        # A remote reference keeps its value, and a future is serialized when it is done, on whatever thread.
        if not later and op != RpcOp.REMOTE:
            self._answers[_ident()] = number
        else:
            self._answers.pop(_ident(), None)


class _Watched(PythonUDF):
    begins: Callable[..., Any]
    message: tuple[Any, ...]

    @property
    def func(self) -> Any:
        return self.begins(self, self.message) or self[0]


class _Running(functools.partial[Any]):
    """A function for the length of one call. In C, so that it has no frame; nobody but the call holds it."""

    ends: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.ends is not None:
            self.ends()


def _has_run_nothing(error: BaseException | None) -> bool:
    """Whether torch itself raised the error, since this worker does not have the function."""
    if type(error) is not AttributeError or error.__traceback__ is None:
        return False
    return error.__traceback__.tb_next is None and isinstance(error.__cause__, AttributeError)


def function_name(udf: Any) -> str:
    """Return the name, as in `layers.forward`; of a call through a remote reference's proxy, the method."""
    function, args = udf[0], udf[1]
    name = str(getattr(function, "__qualname__", type(function).__qualname__))
    if name in ("_local_invoke", "_local_invoke_async_execution") and len(args) > 1:
        return f"RRef.{args[1]}"
    return name


def is_internal(function: Any) -> bool:
    """Whether the function is torch's own: the agreement at shutdown, the type of a remote reference."""
    return getattr(function, "__module__", None) in INTERNAL_MODULES
