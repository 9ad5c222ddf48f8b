"""Received RPC messages by number: the call that a result belongs to, the gradients that backward sends back for it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.distributed.rpc.internal import RemoteException

from ddptrace.capture.rpc.wire import tensors_in, wire_nbytes
from ddptrace.capture.surface import Surface
from ddptrace.record import Recorder
from ddptrace.schema import Kind

_now = time.perf_counter_ns
_ident = threading.get_ident

RECEIVING_NODE: Final = "RecvRpcBackward"
"""torch's node behind every tensor that came with a call in an autograd context. It sends their gradients back in C++,
so they are seen in a pre-hook of the node."""

UNMET_MAX: Final = 4096
"""Received results whose call's callback has not come yet, at most: far more than agents have threads."""


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
