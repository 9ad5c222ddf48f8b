"""Captures of CUDA graphs: while one runs, no thread of the process may ask for an event, and none is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ddptrace.capture.device.events import DeviceTimer
from ddptrace.capture.surface import Patches

BEGIN: Final = "capture_begin"
END: Final = "capture_end"


def watch_captures(patches: Patches, events: DeviceTimer) -> None:
    """Have the events of the device rest while a graph is captured, if this torch has graphs."""
    graph: Any = getattr(torch.cuda, "CUDAGraph", None)
    if not (hasattr(graph, "__dict__") and BEGIN in vars(graph) and END in vars(graph)):
        return

    def beginning(original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            events.capture_begins()
            try:
                return original(self, *args, **kwargs)
            except BaseException:
                events.capture_ends()
                raise

        return capture_begin

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                events.capture_ends()

        return capture_end

    patches.replace(graph, BEGIN, beginning)
    patches.replace(graph, END, ending)
