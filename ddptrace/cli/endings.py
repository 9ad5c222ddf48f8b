"""Ctrl-C and SIGTERM as a request to end in order, for commands that run until they are stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

UNTIL_ASKED: Final = 0.2
"""Seconds between two checks whether something is done: Python handles a signal only between them."""


@contextmanager
def ending_in_order(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at the first signal; the second one has its usual effect."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}

    def ask(signum: int, frame: object) -> None:
        stop.set()
        for one, handler in before.items():
            signal.signal(one, handler)

    for one, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(one, ask)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
