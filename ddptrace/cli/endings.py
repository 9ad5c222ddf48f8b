"""Ends commands in order on Ctrl-C and SIGTERM: the main thread handles signals while another thread works."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command."""
UNTIL_ASKED: Final = 0.2
"""Seconds between two checks whether something is done: Python handles a signal only between them."""
ENDING_S: Final = 1.5
"""How long work in progress may still take after the request to end."""


@contextmanager
def signals_held() -> Iterator[Callable[[], None]]:
    """Hold back the signals that end a command until the yielded function is called, or until the block ends.

    What starts a process enters the `try` that ends the process before a signal can raise.
    """
    handlers = {one: signal.getsignal(one) for one in ENDING}
    before = {one: handler for one, handler in handlers.items() if callable(handler)}  # not ignored, and Python's
    held: list[int] = []

    def release() -> None:
        for one, handler in before.items():
            signal.signal(one, handler)
        while held:
            signal.raise_signal(held.pop(0))

    for one in before:
        signal.signal(one, lambda signum, frame: held.append(signum))
    try:
        yield release
    finally:
        release()


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


def is_done(wait: Callable[[float], bool], stop: threading.Event) -> bool:
    """Wait until `wait(seconds)` returns True. Returns False if `stop` was set and `ENDING_S` went by first."""
    until = float("inf")
    while not wait(UNTIL_ASKED):
        if stop.is_set():
            until = min(until, time.monotonic() + ENDING_S)
        if time.monotonic() >= until:
            return False
    return True


def does(work: Callable[[], None], stop: threading.Event) -> bool:
    """Run `work`. Returns False if `stop` was set and `ENDING_S` went by first. Raises what `work` raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="ddptrace-work", daemon=True)
    thread.start()

    def wait(for_s: float) -> bool:
        thread.join(for_s)
        return not thread.is_alive()

    is_over = is_done(wait, stop)
    if raised:
        raise raised[0]
    return is_over
