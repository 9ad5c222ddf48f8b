"""What was delivered and what was not, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ddptrace.telemetry.delivery.delivery import Delivery

WITHOUT_METRICS = "; where a collector takes no metrics, OTEL_METRICS_EXPORTER=none beside its endpoint sends it none"


def success(deliveries: Sequence[Delivery]) -> Iterator[str]:
    """What each destination has accepted, if anything."""
    for one in deliveries:
        if one.sent:
            yield f"{one.sent:,} {one.kind} were delivered to {one.destination.name}"


def complaint(deliveries: Sequence[Delivery], run: Path, *, is_counted: bool = True) -> str | None:
    """None where everything was delivered. Not `is_counted`: more may be missing than is known."""
    told = [*_undelivered(deliveries, "" if is_counted else "at least "), *_unread(deliveries)]
    if not is_counted and not told:
        told = ["not all telemetry was delivered (there was no time left to count what is missing)"]
    if not told:
        return None
    untaken = _untaken_metrics(deliveries)
    is_worth_it = not is_counted or any(one.lost for one in deliveries if one not in untaken)
    again = f"; `ddptrace export {run}` delivers it from the directory" if is_worth_it else ""
    return "; ".join(told) + again + (WITHOUT_METRICS if untaken else "")


def _undelivered(deliveries: Sequence[Delivery], about: str) -> Iterator[str]:
    """What one place did not take for one reason is one sentence."""
    counts: dict[tuple[str, str], list[str]] = {}
    for one in deliveries:
        if count := one.lost + one.refused:
            words = f"{about}{count:,} of {one.sent + count:,} {one.kind}"
            counts.setdefault((one.destination.name, one.why or "there was no time left"), []).append(words)
    for (name, why), words_of in counts.items():
        yield f"{' and '.join(words_of)} were not delivered to {name} ({why})"


def _unread(deliveries: Sequence[Delivery]) -> Iterator[str]:
    for one in deliveries:
        if one.unread_steps:
            yield f"{one.unread_steps:,} steps could no longer be read from the disk when their {one.kind} were made"


def _untaken_metrics(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Many a collector takes traces only, and never will take the rest."""
    takes = {one.destination.name for one in deliveries if one.kind == "spans" and one.sent}
    numbers = [one for one in deliveries if one.kind != "spans" and one.destination.name in takes]
    return [one for one in numbers if one.lost and one.is_lasting]
