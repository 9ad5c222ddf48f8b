"""Brings what is made to one destination, in order, keeps each batch until it is accepted, and counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.telemetry.delivery.destination import Destination, Outcome, points, requests_of

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


FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
LONGEST_ASKED_S: Final = 60.0
"""A destination that asks for a longer pause does not get it."""
Say = Callable[[str], None]


class Delivery:
    """Of one kind of thing, "spans" or "points", to one destination.

    `sent`, `refused` and `lost` count them: accepted; refused for good by the other side; given up by us. `why`: what
    the last trouble was; `is_in_trouble`: it still is. A change from good to bad and back is said in one sentence each,
    however long it takes, but for one that begins when there is no time left: whoever reports at the end tells that.
    `is_lasting`: only somebody can mend the last trouble. `hint`: what is said of the first attempt that failed, where
    there will be others. `unread_steps` are missing beside: they could no longer be read from the disk.
    """

    def __init__(self, destination: Destination, kind: str, patience: Patience, say: Say, *, hint: str = "") -> None:
        self.destination = destination
        self.kind = kind
        self.sent = self.refused = self.lost = 0
        self.unread_steps = 0
        self.why = ""
        self.is_given_up = self.is_lasting = False
        self._hint = hint
        self._patience = patience
        self._say = say
        self.is_in_trouble = False
        self._has_remarked = False  # a word that comes with each answer is told once

    @property
    def is_whole(self) -> bool:
        return not (self.refused or self.lost or self.unread_steps)

    def spans(self, batch: Sequence[ReadableSpan]) -> None:
        """Returns when it is accepted, refused, or given up with all that follow."""
        if self._is_hopeless():
            self.lost += len(batch)
        else:
            self._bring(lambda: self.destination.spans(batch), len(batch))

    def metrics(self, data: MetricsData, *, last: bool) -> None:
        """All numbers as they are now: they take the place of the earlier ones. What is not accepted is not sent again,
        since the next ones tell it too, but for the `last` ones."""
        self.sent = self.refused = self.lost = 0
        for part in requests_of(data):
            self._bring(lambda part=part: self.destination.metrics(part), points(part), again=last)  # type: ignore[misc]

    def close(self) -> None:
        self.destination.close()

    def _is_hopeless(self) -> bool:
        """Where the time is over, one that is slow but accepts is not waited for either."""
        self.is_given_up = self.is_given_up or self._patience.is_over()
        return self.is_given_up

    def _bring(self, attempt: Callable[[], Outcome], count: int, *, again: bool = True) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            outcome = attempt()
            self._hear(outcome)
            if outcome.settled:
                self._count(outcome, count)
                return
            asked_s = min(outcome.again_s or 0.0, LONGEST_ASKED_S)
            is_in_vain = outcome.lasting and self._patience.has_ended()  # nobody is there any more who would mend it
            if not again or is_in_vain or not self._patience.wait(max(pause_s, asked_s)):
                break
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self.is_given_up |= again
        self.lost += count

    def _count(self, outcome: Outcome, count: int) -> None:
        self.refused += outcome.refused
        self.sent += count - outcome.refused
        self._patience.accepted()

    def _hear(self, outcome: Outcome) -> None:
        is_bad = not outcome.settled
        if is_bad or outcome.refused:
            self.why, self.is_lasting = outcome.why, outcome.lasting
        was_bad, self.is_in_trouble = self.is_in_trouble, is_bad
        if is_bad and not was_bad and not self._patience.is_over():
            hint = f"; {self._hint}" if self._hint and not outcome.lasting else ""
            self._say(f"{self.destination.name} does not take the {self.kind} ({outcome.why}){hint}")
        elif was_bad and not is_bad:
            self._say(f"{self.destination.name} takes the {self.kind} again")
        if outcome.settled and outcome.why and not self._has_remarked:
            self._has_remarked = True
            refused = f"refused {outcome.refused} {self.kind}" if outcome.refused else f"says of the {self.kind}"
            self._say(f"{self.destination.name} {refused}: {outcome.why}")
