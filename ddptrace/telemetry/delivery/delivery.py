"""Delivers batches to one destination, in order: keeps each until it is accepted or time is up, and counts.

A destination takes spans and metrics, and says how each attempt ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics
from opentelemetry.sdk.trace import ReadableSpan

ASK_EVERY_S: Final = 0.2

BATCH_SPANS: Final = 512
"""Spans in one request, as in the SDK's own processor: far below the 4 MiB that gRPC accepts."""


REQUEST_POINTS: Final = 2_000
"""About the number of data points in one request, for the same reason; those of one rank stay together."""


class Patience:
    """Decides how long to repeat failed attempts: while the run goes on, and for `grace_s` seconds after its end.

    With `renews` those seconds begin anew whenever something is accepted. `stop` ends all patience at once.
    """

    def __init__(
        self, grace_s: float, *, ended: Callable[[], bool], stop: threading.Event, renews: bool = False
    ) -> None:
        self._grace_s = grace_s
        self._ended = ended
        self._stop = stop
        self._renews = renews
        self._until_s: float | None = None

    def anew(self) -> Patience:
        """Return another one with the same settings, for another destination."""
        return Patience(self._grace_s, ended=self._ended, stop=self._stop, renews=self._renews)

    def accepted(self) -> None:
        if self._renews and self._until_s is not None:
            self._until_s = time.monotonic() + self._grace_s

    def has_ended(self) -> bool:
        """Whether the run has ended."""
        if self._until_s is None and self._ended():
            self._until_s = time.monotonic() + self._grace_s
        return self._until_s is not None

    def is_over(self) -> bool:
        """Whether the time is over, no matter whether `stop` is set."""
        return self.has_ended() and self._until_s is not None and time.monotonic() >= self._until_s

    def wait(self, pause_s: float) -> bool:
        """Pause, and return whether patience is left after it."""
        until = time.monotonic() + pause_s
        while not self._is_lost() and (left := until - time.monotonic()) > 0:
            self._stop.wait(min(left, ASK_EVERY_S))
        return not self._is_lost()

    def _is_lost(self) -> bool:
        return self._stop.is_set() or self.is_over()


FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
LONGEST_ASKED_S: Final = 60.0
"""The longest pause that a destination can ask for."""
Say = Callable[[str], None]


class Delivery:
    """Delivers one `kind` of items, "spans" or "metric points", to one destination.

    `sent`, `refused` and `lost` count the items: accepted, refused for good by the destination, given up here.
    `unread_steps` counts steps that could no longer be read from the disk.

    `why` describes the last trouble; `is_in_trouble`: it has not ended; `is_lasting`: it will not end by itself.
    `say` gets one sentence when trouble begins and one when it ends, but none if it begins when time is up: the report
    at the end covers that. `hint` is added to the sentence if there will be more attempts.
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
        self._has_remarked = False  # a message that comes with each answer is passed on once

    @property
    def is_whole(self) -> bool:
        return not (self.refused or self.lost or self.unread_steps)

    def spans(self, batch: Sequence[ReadableSpan]) -> None:
        """Deliver a batch: return when it was accepted or refused, or given up together with all later ones."""
        if self._is_hopeless():
            self.lost += len(batch)
        else:
            self._deliver(lambda: self.destination.spans(batch), len(batch))

    def metrics(self, data: MetricsData, *, last: bool) -> None:
        """Deliver all numbers as of now, which replace the earlier ones. Only the `last` ones are sent again after a
        failed attempt, since later ones contain the earlier ones."""
        self.sent = self.refused = self.lost = 0
        for part in requests_of(data):
            self._deliver(lambda part=part: self.destination.metrics(part), points(part), again=last)  # type: ignore[misc]

    def close(self) -> None:
        self.destination.close()

    def _is_hopeless(self) -> bool:
        """Whether to give up. Once time is up, not even a slow destination that accepts gets more."""
        self.is_given_up = self.is_given_up or self._patience.is_over()
        return self.is_given_up

    def _deliver(self, attempt: Callable[[], Outcome], count: int, *, again: bool = True) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            outcome = attempt()
            self._remember(outcome)
            if outcome.settled:
                self._count(outcome, count)
                return
            asked_s = min(outcome.again_s or 0.0, LONGEST_ASKED_S)
            is_hopeless = outcome.lasting and self._patience.has_ended()  # after the run nobody will mend it
            if not again or is_hopeless or not self._patience.wait(max(pause_s, asked_s)):
                break
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self.is_given_up |= again
        self.lost += count

    def _count(self, outcome: Outcome, count: int) -> None:
        self.refused += outcome.refused
        self.sent += count - outcome.refused
        self._patience.accepted()

    def _remember(self, outcome: Outcome) -> None:
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt.

    If `settled`, the destination accepted all items but `refused` ones, and the attempt need not be repeated. Otherwise
    nothing was accepted as far as is known, and it can be repeated, after `again_s` seconds if the destination asked
    for that; if `lasting`, repeating helps only after somebody has changed a setting. `why` is the reason, or another
    message of the destination.
    """

    settled: bool
    refused: int = 0
    why: str = ""
    again_s: float | None = None
    lasting: bool = False


ACCEPTED: Final = Outcome(True)


class Destination(Protocol):
    """Takes spans and metrics. Each call is one attempt of bounded time, and never raises."""

    @property
    def name(self) -> str:
        """Its name in messages: an address, a file."""

    def spans(self, batch: Sequence[ReadableSpan]) -> Outcome: ...

    def metrics(self, data: MetricsData) -> Outcome: ...

    def close(self) -> None: ...


def points(data: MetricsData) -> int:
    """Return the number of data points."""
    return sum(map(_points, data.resource_metrics))


def requests_of(data: MetricsData) -> Iterator[MetricsData]:
    """Split metrics into parts that are small enough for one request."""
    part: list[ResourceMetrics] = []
    held = 0
    for of_rank in data.resource_metrics:
        part.append(of_rank)
        held += _points(of_rank)
        if held >= REQUEST_POINTS:
            yield MetricsData(part)
            part, held = [], 0
    if part:
        yield MetricsData(part)


def _points(of_rank: ResourceMetrics) -> int:
    return sum(len(metric.data.data_points) for scope in of_rank.scope_metrics for metric in scope.metrics)
