"""How long what is not accepted is tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

ASK_EVERY_S: Final = 0.2


class Patience:
    """As long as the run goes on, and `grace_s` from when it is first seen to have ended; with `renews`, since then
    from the last time that something was accepted. None left once `stop` is set."""

    def __init__(
        self, grace_s: float, *, ended: Callable[[], bool], stop: threading.Event, renews: bool = False
    ) -> None:
        self._grace_s = grace_s
        self._ended = ended
        self._stop = stop
        self._renews = renews
        self._until_s: float | None = None

    def anew(self) -> Patience:
        """Another of the same kind: what one destination has used up is not missing to another."""
        return Patience(self._grace_s, ended=self._ended, stop=self._stop, renews=self._renews)

    def accepted(self) -> None:
        if self._renews and self._until_s is not None:
            self._until_s = time.monotonic() + self._grace_s

    def has_ended(self) -> bool:
        """Whether the run has."""
        if self._until_s is None and self._ended():
            self._until_s = time.monotonic() + self._grace_s
        return self._until_s is not None

    def is_over(self) -> bool:
        """Whether the time is over; being asked to stop is not meant."""
        return self.has_ended() and self._until_s is not None and time.monotonic() >= self._until_s

    def wait(self, pause_s: float) -> bool:
        """Whether there is patience left after so long a pause."""
        until = time.monotonic() + pause_s
        while not self._is_lost() and (left := until - time.monotonic()) > 0:
            self._stop.wait(min(left, ASK_EVERY_S))
        return not self._is_lost()

    def _is_lost(self) -> bool:
        return self._stop.is_set() or self.is_over()
