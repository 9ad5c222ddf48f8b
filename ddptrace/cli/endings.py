"""Ctrl-C and SIGTERM as a wish to end in order, for commands that go on until they are asked to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

UNTIL_ASKED: Final = 0.2
"""Seconds between two looks at whether something is done: Python hears a signal between them only."""


@contextmanager
def ending_in_order(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at the first signal; the second one ends as it always does."""
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
