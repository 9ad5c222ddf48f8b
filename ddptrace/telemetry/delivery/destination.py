"""Where spans and metrics are brought to, and what became of one attempt to bring them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics
from opentelemetry.sdk.trace import ReadableSpan

BATCH_SPANS: Final = 512
"""Spans in one request, as the SDK's own processor has them: far below the 4 MiB that gRPC takes."""


REQUEST_POINTS: Final = 2_000
"""Data points in one request, about, for the same reason; those of one rank stay together."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`settled`: the other side has answered for good, and accepted all but `refused` of it. Else nothing was accepted
    as far as is known, and it may be sent again, after `again_s` if the other side has said so; `lasting`: that helps
    only if somebody changes something first. `why`: of what was not accepted, or what it had to say beside."""

    settled: bool
    refused: int = 0
    why: str = ""
    again_s: float | None = None
    lasting: bool = False


ACCEPTED: Final = Outcome(True)


class Destination(Protocol):
    """Each call is one attempt, of bounded time, and raises nothing."""

    @property
    def name(self) -> str:
        """As people are told of it: an address, a file."""

    def spans(self, batch: Sequence[ReadableSpan]) -> Outcome: ...

    def metrics(self, data: MetricsData) -> Outcome: ...

    def close(self) -> None: ...


def points(data: MetricsData) -> int:
    """How many data points there are in it."""
    return sum(map(_points, data.resource_metrics))


def requests_of(data: MetricsData) -> Iterator[MetricsData]:
    """The same in parts that are not too large to be sent."""
    part: list[ResourceMetrics] = []
    held = 0
    for one in data.resource_metrics:
        part.append(one)
        held += _points(one)
        if held >= REQUEST_POINTS:
            yield MetricsData(part)
            part, held = [], 0
    if part:
        yield MetricsData(part)


def _points(one: ResourceMetrics) -> int:
    return sum(len(metric.data.data_points) for scope in one.scope_metrics for metric in scope.metrics)
