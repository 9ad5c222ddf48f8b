"""Work that Ctrl-C ends in time, whatever it stands in: the main thread hears signals, another one works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from ddptrace.cli.endings import UNTIL_ASKED

ENDING_S: Final = 1.5
"""So long after it was asked to end, what is under way may still be settled."""


def is_done(wait: Callable[[float], bool], stop: threading.Event) -> bool:
    """Whether `wait`, which is given seconds and says whether it is all over, was before `stop` and `ENDING_S`."""
    until = float("inf")
    while not wait(UNTIL_ASKED):
        if stop.is_set():
            until = min(until, time.monotonic() + ENDING_S)
        if time.monotonic() >= until:
            return False
    return True


def does(work: Callable[[], None], stop: threading.Event) -> bool:
    """Whether `work` was done before. Raises what it raised."""
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
