"""Wraps calls of the device: those that make a stream wait, and those that begin and end the capture of a graph."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import torch

from ddptrace.capture.device.timed_events import DeviceTimer
from ddptrace.capture.surface import Patches

WAIT: Final = "wait"
BEGIN: Final = "capture_begin"
END: Final = "capture_end"


def watch_waits(patches: Patches, timer: DeviceTimer) -> None:
    """Time each wait for an event of the device, if the class is Python's: CUDA's `Stream.wait_event` and `wait_stream`
    call that."""
    if not isinstance(vars(timer.event_type).get(WAIT), FunctionType):  # C++ takes no replacement
        return

    def waiting(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(self: Any, stream: Any = None) -> Any:
            placed = timer.before_wait(self, stream)
            found = original(self, stream)
            if placed is not None:
                timer.after_wait(placed, stream)
            return found

        return wait

    patches.replace(timer.event_type, WAIT, waiting)


def watch_captures(patches: Patches, timer: DeviceTimer) -> None:
    """Have the events of the device rest while a graph is captured, if this torch has graphs."""
    graph: Any = getattr(torch.cuda, "CUDAGraph", None)
    if not (hasattr(graph, "__dict__") and BEGIN in vars(graph) and END in vars(graph)):
        return

    def beginning(original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            timer.capture_begins()
            try:
                return original(self, *args, **kwargs)
            except BaseException:
                timer.capture_ends()
                raise

        return capture_begin

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                timer.capture_ends()

        return capture_end

    patches.replace(graph, BEGIN, beginning)
    patches.replace(graph, END, ending)
