"""A destination of spans and metrics, and the outcome of one attempt to deliver to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics
from opentelemetry.sdk.trace import ReadableSpan

BATCH_SPANS: Final = 512
"""Spans in one request, as in the SDK's own processor: far below the 4 MiB that gRPC accepts."""


REQUEST_POINTS: Final = 2_000
"""About the number of data points in one request, for the same reason; those of one rank stay together."""


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
