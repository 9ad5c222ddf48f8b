"""Sentences about what was delivered and what was not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ddptrace.telemetry.delivery.delivery import Delivery

WITHOUT_METRICS = "; if the collector takes no metrics, set OTEL_METRICS_EXPORTER=none besides its endpoint"


def success(deliveries: Sequence[Delivery]) -> Iterator[str]:
    """Yield what each destination has accepted."""
    for delivery in deliveries:
        if delivery.sent:
            yield f"{delivery.sent:,} {delivery.kind} were delivered to {delivery.destination.name}"


def complaint(deliveries: Sequence[Delivery], run: Path, *, is_counted: bool = True) -> str | None:
    """Describe what was not delivered, None if nothing is missing. Without `is_counted` more may be missing."""
    sentences = [*_undelivered(deliveries, "" if is_counted else "at least "), *_unread(deliveries)]
    if not is_counted and not sentences:
        sentences = ["not all telemetry was delivered (there was no time left to count what is missing)"]
    if not sentences:
        return None
    untaken = _untaken_metrics(deliveries)
    is_worth_it = not is_counted or any(delivery.lost for delivery in deliveries if delivery not in untaken)
    again = f"; `ddptrace export {run}` delivers it from the directory" if is_worth_it else ""
    return "; ".join(sentences) + again + (WITHOUT_METRICS if untaken else "")


def _undelivered(deliveries: Sequence[Delivery], about: str) -> Iterator[str]:
    """Yield one sentence for each destination and reason."""
    counts: dict[tuple[str, str], list[str]] = {}
    for delivery in deliveries:
        if count := delivery.lost + delivery.refused:
            words = f"{about}{count:,} of {delivery.sent + count:,} {delivery.kind}"
            counts.setdefault((delivery.destination.name, delivery.why or "there was no time left"), []).append(words)
    for (name, why), parts in counts.items():
        yield f"{' and '.join(parts)} were not delivered to {name} ({why})"


def _unread(deliveries: Sequence[Delivery]) -> Iterator[str]:
    for delivery in deliveries:
        if delivery.unread_steps:
            steps, kind = delivery.unread_steps, delivery.kind
            yield f"{steps:,} steps could no longer be read from the disk when their {kind} were made"


def _untaken_metrics(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Return the metrics for destinations that take spans only, as many collectors do."""
    takes = {delivery.destination.name for delivery in deliveries if delivery.kind == "spans" and delivery.sent}
    return [
        delivery
        for delivery in deliveries
        if delivery.kind != "spans" and delivery.destination.name in takes and delivery.lost and delivery.is_lasting
    ]
