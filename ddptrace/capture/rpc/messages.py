"""RPC messages: their size, the stamp by which caller and callee are matched, their workers, and the received ones."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch._C._distributed_rpc import _get_current_rpc_agent
from torch.distributed.rpc.internal import RemoteException

from ddptrace.capture.surface import Surface
from ddptrace.record import Recorder
from ddptrace.schema import CALL_BITS, Kind, RpcFlag, RpcOp

_now = time.perf_counter_ns
_ident = threading.get_ident

RECEIVING_NODE: Final = "RecvRpcBackward"
"""torch's node behind every tensor that came with a call in an autograd context. It sends their gradients back in C++,
so they are seen in a pre-hook of the node."""

UNMET_MAX: Final = 4096
"""Received results whose call's callback has not come yet, at most: far more than agents have threads."""

MAGIC: Final = b"\0ddprpc"
STAMP_NBYTES: Final = 16
OPS: Final = frozenset(RpcOp)
RECOPY_MIN_NBYTES: Final = 8 << 10
"""A view is copied before it is sent if its storage is at least this large and twice as large as the view."""


class Received(NamedTuple):
    number: int
    nbytes: int
    value: int  # id of the value that came in it
    failed: bool  # the function raised


class Messages:
    """Numbers what is received, finds a call's result again, and watches gradients leave.

    The callback of a call comes next on the thread that read its result; or, if the result was faster than the caller,
    on the caller's thread. The agent's threads are not Python's, so thread-local values do not last: idents are used.
    """

    def __init__(self, recorder: Recorder, surface: Surface) -> None:
        self.numbers = itertools.count(1)
        self._recorder = recorder
        self._surface = surface
        self._here: dict[int, Received] = {}  # the last result that each thread read
        self._unmet: dict[int, Received] = {}  # by id of the value, which its future holds

    def received(self, value: Any, payload: bytes, tensors: Sequence[torch.Tensor]) -> None:
        """A result was read on this thread."""
        failed = isinstance(value, RemoteException)
        received = Received(next(self.numbers), len(payload) + wire_nbytes(tensors), id(value), failed)
        self.watch_gradients(received.number, tensors)
        self._here[_ident()] = received
        if not failed:
            self._unmet.pop(received.value, None)
            self._unmet[received.value] = received
            if len(self._unmet) > UNMET_MAX:
                self._unmet.pop(next(iter(self._unmet)), None)

    def carrying(self, value: Any) -> Received | None:
        """Return the message that `value` came in; of the same value in several (as None) the one that this thread
        read."""
        here, unmet = self._here.pop(_ident(), None), self._unmet.pop(id(value), None)
        return here if here is not None and here.value == id(value) else unmet

    def refusal(self) -> Received | None:
        """Return the message that reported the failure of a call; None if it failed without a message."""
        here = self._here.pop(_ident(), None)
        return here if here is not None and here.failed else None

    def forget_here(self) -> None:
        """Forget the last result of this thread: the next one answers the call that it is about to make."""
        self._here.pop(_ident(), None)

    def unpickled(self, value: Any) -> Received:
        """Number a result that C++ made: only its tensors are visible."""
        tensors = list(tensors_in(value))
        received = Received(next(self.numbers), wire_nbytes(tensors), id(value), False)
        self.watch_gradients(received.number, tensors)
        return received

    def watch_gradients(self, number: int, tensors: Sequence[torch.Tensor]) -> None:
        """Record the gradients that a distributed backward, if there is one, sends back for the tensors of a
        message."""
        received: dict[Any, dict[int, int]] = {}
        for tensor in tensors:
            node = tensor.grad_fn
            if node is not None and RECEIVING_NODE in node.name():
                received.setdefault(node, {})[tensor.output_nr] = tensor.numel() * tensor.element_size()
        for node, sizes in received.items():
            node.register_prehook(self._hook(number, sizes))

    def _hook(self, number: int, sizes: dict[int, int]) -> Any:
        def sent(gradients: Iterable[torch.Tensor | None]) -> None:
            at = _now()
            self._surface.call(self._sent, at, number, sizes, tuple(gradients))

        return sent

    def _sent(self, at: int, number: int, sizes: dict[int, int], gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Record the bytes sent; for a tensor without a gradient, zeros are sent."""
        nbytes = wire_nbytes(gradient for gradient in gradients if gradient is not None)
        nbytes += sum(sizes.get(place, 0) for place, gradient in enumerate(gradients) if gradient is None)
        self._recorder.event(Kind.RPC_GRADIENT, 0, 0, at, at, number, nbytes)


class Stamp(NamedTuple):
    call: int
    op: int  # RpcOp
    is_async_execution: bool


def stamped(payload: bytes, stamp: Stamp) -> bytes:
    """Return `payload` with the call's id behind it. A pickle ends at its STOP: whoever loads it, traced or not, does
    not read what follows. Nothing else in a message distinguishes equal calls of several callers."""
    how = stamp.op | (RpcFlag.ASYNC_EXECUTION << 4 if stamp.is_async_execution else 0)
    return b"".join((payload, MAGIC, bytes((how,)), stamp.call.to_bytes(8, "little")))


def read_stamp(payload: bytes) -> Stamp | None:
    """Return the stamp at the end of a payload; None if its sender was not traced, or by a ddptrace with unknown
    ops."""
    how, is_stamped = payload[-9:-8], payload[-STAMP_NBYTES : len(MAGIC) - STAMP_NBYTES] == MAGIC
    if not is_stamped or how[0] & 15 not in OPS:
        return None
    call, later = int.from_bytes(payload[-8:], "little"), how[0] >> 4 & RpcFlag.ASYNC_EXECUTION
    return Stamp(call, RpcOp(how[0] & 15), bool(later))


def wire_nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors in one message. TensorPipe sends each storage once and whole, whatever part of it a
    tensor shows; of a storage that is mostly unused it sends a copy of the used part."""
    seen: set[int] = set()
    total = 0
    for tensor in tensors:
        for part in _strided(tensor):
            storage, useful = part.untyped_storage(), part.numel() * part.element_size()
            held = storage.nbytes()
            if held >= RECOPY_MIN_NBYTES and held >= 2 * useful:
                total += useful
            elif storage._cdata not in seen:
                seen.add(storage._cdata)
                total += held
    return total


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a value, in lists, tuples and dicts at any depth."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def gradient_nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the gradients that tensors sent in an autograd context would have."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.requires_grad)


def _strided(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.strided:
        return (tensor,)
    return (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else ()


class Workers:
    """Makes call ids that no other worker makes, and reads the caller from one: the worker's id is in its high bits.

    Names of workers are returned as string ids."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._met: set[str] = set()

    def call_id(self, count: int) -> int:
        """The id of this worker's `count`-th call. Raises RuntimeError outside init_rpc and shutdown."""
        return int(self._own().id) << CALL_BITS | count

    def caller(self, call: int) -> int:
        """Return the name of the worker that made the call; 0 if it is none of the known workers (it may have left)."""
        try:
            self._own()
            worker = _get_current_rpc_agent().get_worker_info(call >> CALL_BITS)  # type: ignore[call-overload]
        except RuntimeError:
            return 0
        return self._recorder.intern(worker.name)

    def callee(self, worker: Any) -> int:
        return self._recorder.intern(worker if isinstance(worker, str) else worker.name)

    def _own(self) -> Any:
        """Return this process's worker, and record it the first time. It may shut down and join again."""
        own = _get_current_rpc_agent().get_worker_info()
        text = f"{own.id} {own.name}"
        if text not in self._met:
            self._met.add(text)
            self._recorder.describe(Kind.RPC_WORKER, json.dumps({"name": own.name, "id": own.id}))
            self._recorder.nudge()  # the rank can be learned: before a short job shuts down
        return own
