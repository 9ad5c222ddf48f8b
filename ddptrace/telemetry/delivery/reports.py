"""Sentences about what was delivered, what was not, and what is missing in the run itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.live.batch import Losses
from ddptrace.live.run_folders import rank_folders
from ddptrace.record.directory import read_json
from ddptrace.schema import META
from ddptrace.telemetry.delivery.delivery import Delivery
from ddptrace.telemetry.delivery.exports import Line
from ddptrace.units import counted

WITHOUT_METRICS = "; if the collector takes no metrics, set OTEL_METRICS_EXPORTER=none besides its endpoint"

MOST_TOLD: Final = 3
REMOVED: Final = "its folder was moved, replaced or removed before all of it was read"
RUN_REMOVED: Final = "its directory was moved or removed before any rank of it was read"


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
            steps, kind = counted(delivery.unread_steps, "step"), delivery.kind
            yield f"{steps} could no longer be read from the disk when the {kind} were made"


def _untaken_metrics(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Return the metrics for destinations that take spans only, as many collectors do."""
    takes = {delivery.destination.name for delivery in deliveries if delivery.kind == "spans" and delivery.sent}
    return [
        delivery
        for delivery in deliveries
        if delivery.kind != "spans" and delivery.destination.name in takes and delivery.lost and delivery.is_lasting
    ]


def of_result(result: Result, run: Path) -> str | None:
    """Describe what an analyzed run lacks. None if it lacks nothing."""
    ranks = {f"rank {row.rank}" for row in result.ranks}
    found = [one for one in result.findings if one.kind.loses_records and one.where in ranks]
    return _told([f"{one.where}: {one.message}" for one in found], run)


def of_lines(lines: Sequence[Line], run: Path) -> str | None:
    """Describe what a followed run lacks. None if it lacks nothing."""
    followers = [line.follower for line in lines]
    known = {who: losses for follower in followers for who, losses in follower.losses().items()}
    removed = {now.identity.rank for follower in followers for now in follower.now() if now.removed}
    lost = [f"rank {rank}: {', '.join(words)}" for (_, rank), losses in known.items() if (words := [*_of(losses)])]
    gone = [RUN_REMOVED] * any(follower.is_removed and not follower.ranks for follower in followers)
    return _told([*(f"rank {rank}: {REMOVED}" for rank in sorted(removed)), *gone, *lost], run)


def of_unplaced(run: Path) -> str | None:
    """Describe the ranks that did not record their host, so that an export of one host leaves them out."""
    found = [rank.folder.name for rank in rank_folders(run) if "host" not in (read_json(rank.folder / META) or {})]
    if not found:
        return None
    more = f" and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    folders = f"{', '.join(found[:MOST_TOLD])}{more}"
    return f"{folders} did not record the host, and were not exported; `ddptrace export {run}` delivers them"


def _of(losses: Losses) -> Iterator[str]:
    if losses.records:
        yield f"{losses.records:,} records were lost"
    yield from losses.damaged


def _told(found: Sequence[str], run: Path) -> str | None:
    if not found:
        return None
    more = f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    return (
        f"the run itself is not whole ({_joined(found)}{more}), and `ddptrace analyze {run}` explains what that means"
    )


def _joined(found: Iterable[str]) -> str:
    return "; ".join(list(found)[:MOST_TOLD])
