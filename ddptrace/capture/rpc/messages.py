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
"""torch's node behind every tensor that came with a call in an autograd context. It sends their gradients to where they
came from, in C++, so its own pre-hook is where they are seen."""

UNMET_MAX: Final = 4096
"""Results that are received and not yet met by their call's own callback: far more than agents have threads."""


class Received(NamedTuple):
    number: int
    nbytes: int
    of: int  # id of the value that came in it
    failed: bool  # it says that the function raised


class Messages:
    """Numbers what is received, finds a call's result again, and watches gradients leave.

    A call's callback comes next on the thread that read its result, or, where the result was quicker than the caller,
    on the caller's. The agent's threads are not Python's, so what is local to one does not last: hence their idents.
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
        one = Received(next(self.numbers), len(payload) + wire_nbytes(tensors), id(value), failed)
        self.watch_gradients(one.number, tensors)
        self._here[_ident()] = one
        if not failed:
            self._unmet.pop(one.of, None)
            self._unmet[one.of] = one
            if len(self._unmet) > UNMET_MAX:
                self._unmet.pop(next(iter(self._unmet)), None)

    def carrying(self, value: Any) -> Received | None:
        """The message that `value` came in; of equal values (there is one None) the one that this thread read."""
        here, unmet = self._here.pop(_ident(), None), self._unmet.pop(id(value), None)
        return here if here is not None and here.of == id(value) else unmet

    def refusal(self) -> Received | None:
        """The message by which a call failed; None where it failed without one."""
        here = self._here.pop(_ident(), None)
        return here if here is not None and here.failed else None

    def forget_here(self) -> None:
        """What this thread reads next is the answer to what it is about to ask."""
        self._here.pop(_ident(), None)

    def unpickled(self, value: Any) -> Received:
        """For a result that C++ made: its tensors are all that is seen of it."""
        tensors = list(tensors_in(value))
        one = Received(next(self.numbers), wire_nbytes(tensors), id(value), False)
        self.watch_gradients(one.number, tensors)
        return one

    def watch_gradients(self, number: int, tensors: Sequence[torch.Tensor]) -> None:
        """Record what distributed backward sends back for the tensors of message `number`, if it comes to that."""
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
        """For a tensor without a gradient zeros are sent."""
        nbytes = wire_nbytes(one for one in gradients if one is not None)
        nbytes += sum(sizes.get(place, 0) for place, one in enumerate(gradients) if one is None)
        self._recorder.event(Kind.RPC_GRADIENT, 0, 0, at, at, number, nbytes)
