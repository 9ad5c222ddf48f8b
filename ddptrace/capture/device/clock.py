"""What ddptrace asks of a device: its events and streams, and how its clock stands to the host's.

An event says how long after another event it happened, and nothing about the host. So now and then an event is put on
an idle stream of our own, and the host reads its clock before and after:

    host      before            after          the event happened in between: half of the distance is the error
    stream            event

Instants of the device are ns since the first such event, plus the host's time at that event: so both clocks show nearly
the same, and 0 is no instant. torch gives distances as single-precision numbers of milliseconds. So each tie becomes
the event from which the next distances are measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

TRIES: Final = 5
LONGEST_NS: Final = 2_000_000
"""A tie that takes longer tells too little; then the device is busy, and the next beat tries again."""
SPIN_NS: Final = 50_000
NAP_S: Final = 20e-6
NS_PER_MS: Final = 1e6

WITHOUT_EVENTS: Final = ("cpu", "meta")
MOST_QUEUES: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
ENOUGH_QUEUES: Final = 8
"""With fewer hardware queues than this (CUDA's default), a stream that waits may hold up the streams that share its
queue."""
PRIORITY: Final = -3
"""Of streams of ours. torch has 32 streams of each priority and hands them out again and again, and the hardware has
queues of each: hardly any program asks for the highest, so that none of its work comes to lie behind our waits. torch
takes the nearest that a device has."""

_now = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class DeviceApi:
    """Makes events and streams of one device. `inside(stream)` makes the stream current, and waits for nothing.
    `selected()` makes the device current: CUDA would take half a gigabyte of the first GPU's memory for a thread that
    asks for an event of another one. `beside_captures()`: in it, asking for an event ends no capture of a graph."""

    device: torch.device
    new_event: Callable[[], Any]
    new_stream: Callable[[], Any]
    event_type: type
    inside: Callable[[Any], AbstractContextManager[Any]]
    selected: Callable[[], AbstractContextManager[Any]]
    beside_captures: Callable[[], AbstractContextManager[Any]]
    current: Callable[[], Any]  # the current stream
    is_captured: Callable[[], bool]  # whether the current stream is being captured into a graph
    may_wait: bool  # whether a stream of ours may wait without holding up others


def api_of(device: torch.device) -> DeviceApi | None:
    """Return what torch offers for the device; None if it has no streams or no events that tell time."""
    module = getattr(torch, device.type, None)
    if device.type in WITHOUT_EVENTS or not all(
        hasattr(module, name) for name in ("Event", "Stream", "stream", "current_stream", "device")
    ):
        return None
    return DeviceApi(
        device,
        lambda: module.Event(enable_timing=True),  # type: ignore[union-attr]
        lambda: module.Stream(device=device, priority=PRIORITY),  # type: ignore[union-attr]
        module.Event,  # type: ignore[union-attr]
        module.stream,  # type: ignore[union-attr]
        lambda: module.device(device),  # type: ignore[union-attr]
        _capture_guard(device),
        lambda: module.current_stream(),  # type: ignore[union-attr]
        getattr(module, "is_current_stream_capturing", lambda: False),
        _has_queues(),
    )


CUDA: Final = "libcuda.so.1"
RELAXED: Final = 2
"""CUDA's mode of a thread whose calls end no capture that another thread, or a library, has begun."""


def _capture_guard(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    if device.type == "cuda":
        with contextlib.suppress(OSError, AttributeError):  # not of NVIDIA, or an older driver
            return CaptureGuard(ctypes.CDLL(CUDA).cuThreadExchangeStreamCaptureMode)
    return contextlib.nullcontext


class CaptureGuard:
    """Makes the calling thread's mode relaxed for a while. The program's own mode is put back, for its mistakes to show
    as without a trace."""

    def __init__(self, exchange: Callable[[Any], object]) -> None:
        """`exchange(pointer)` puts the thread's mode where the new one is read from."""
        self._exchange = exchange

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        mode = ctypes.c_int(RELAXED)
        self._exchange(ctypes.byref(mode))
        try:
            yield
        finally:
            self._exchange(ctypes.byref(mode))


def _has_queues() -> bool:
    told = os.environ.get(MOST_QUEUES, "")
    return not told.isdecimal() or int(told) >= ENOUGH_QUEUES


class Tie(NamedTuple):
    """An event that happened at `device_ns` on the device, and between two instants on the host."""

    before_ns: int
    after_ns: int
    device_ns: int


class DeviceClock:
    """Reads events as instants of the device. Only one thread at a time may use it."""

    def __init__(self, api: DeviceApi) -> None:
        self._api = api
        self._stream: Any = None
        self._base: Any = None  # an event that is over
        self._base_ns = 0
        self._unused: list[Any] = []

    @property
    def is_set(self) -> bool:
        return self._base is not None

    def tie(self) -> Tie | None:
        """Return the tightest of a few ties; None if none is tight enough. Takes a few times `LONGEST_NS` at most."""
        if self._stream is None:
            self._stream = self._api.new_stream()
        tried = [tried for tried in (self._try() for _ in range(TRIES)) if tried is not None]
        if not tried:
            return None
        before, after, event = min(tried, key=lambda one: one[1] - one[0])
        self._unused += [other for *_, other in tried if other is not event]
        at = self.at_ns(event) if self.is_set else (before + after) // 2
        if self._base is not None:
            self._unused.append(self._base)
        self._base, self._base_ns = event, at
        return Tie(before, after, at)

    def at_ns(self, event: Any) -> int:
        """Return when an event happened that is over."""
        elapsed_ms: float = self._base.elapsed_time(event)
        return self._base_ns + round(elapsed_ms * NS_PER_MS)

    def _try(self) -> tuple[int, int, Any] | None:
        """Return when the event was put on the stream, when it was known to be over, and the event."""
        event = self._unused.pop() if self._unused else self._api.new_event()
        before = _now()
        event.record(self._stream)
        while not event.query():
            waited = _now() - before
            if waited > LONGEST_NS:
                return None  # it is still under way, and not used again
            if waited > SPIN_NS:
                time.sleep(NAP_S)
        return before, _now(), event
