"""Notices `os._exit`, which ends the process without Python's exit handlers."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any


class HardExit:
    """Calls `told(status)` before `os._exit` ends the process, from `watch` to `leave`.

    It misses callers that took a reference to the function before, and signals.
    """

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told
        self._original: Callable[..., Any] = os._exit
        self._ours: Callable[..., Any] | None = None

    def watch(self) -> None:
        original = self._original = os._exit

        @functools.wraps(original)
        def _exit(status: int) -> Any:
            with contextlib.suppress(Exception):
                self._told(status)
            return original(status)

        os._exit = self._ours = _exit

    def leave(self) -> None:
        """Restore the original, unless somebody else has replaced it meanwhile."""
        if self._ours is not None and os._exit is self._ours:
            os._exit = self._original
