"""Waits of the compute stream for events that Python puts on it, as FSDP does before it uses what it gathered."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from ddptrace.capture.device.events import DeviceTimer
from ddptrace.capture.surface import Patches

WAIT: Final = "wait"


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
