"""What torch offers for one kind of device: events that tell time, and streams to put them on."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import torch

WITHOUT_EVENTS: Final = ("cpu", "meta")
MOST_QUEUES: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
ENOUGH_QUEUES: Final = 8
"""With fewer hardware queues than this (CUDA's default), a stream that waits may hold up the streams that share its
queue."""


@dataclass(frozen=True, slots=True)
class DeviceApi:
    """Makes events and streams of one device. `inside(stream)` makes the stream current, and waits for nothing."""

    device: torch.device
    new_event: Callable[[], Any]
    new_stream: Callable[[], Any]
    event_type: type
    inside: Callable[[Any], AbstractContextManager[Any]]
    current: Callable[[], int]  # the number of the current stream
    is_captured: Callable[[], bool]  # whether the current stream is being captured into a graph
    may_wait: bool  # whether a stream of ours may wait without holding up others


def api_of(device: torch.device) -> DeviceApi | None:
    """Return what torch offers for the device; None if it has no streams or no events that tell time."""
    module = getattr(torch, device.type, None)
    if device.type in WITHOUT_EVENTS or not all(
        hasattr(module, name) for name in ("Event", "Stream", "stream", "current_stream")
    ):
        return None
    return DeviceApi(
        device,
        lambda: module.Event(enable_timing=True),  # type: ignore[union-attr]
        lambda: module.Stream(device=device),  # type: ignore[union-attr]
        module.Event,  # type: ignore[union-attr]
        module.stream,  # type: ignore[union-attr]
        lambda: module.current_stream().stream_id,  # type: ignore[union-attr]
        getattr(module, "is_current_stream_capturing", lambda: False),
        _has_queues(),
    )


def _has_queues() -> bool:
    told = os.environ.get(MOST_QUEUES, "")
    return not told.isdecimal() or int(told) >= ENOUGH_QUEUES
