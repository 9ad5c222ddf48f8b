"""Collectives that stand behind others until a worker thread of their backend is free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.findings.facts import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary, typical_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.wording import ms, percent
from ddptrace.load.tables import Finding

COSTLY_MIN_RATIO: Final = 0.1
"""Of the step, that its collectives must expose."""


@dataclass(frozen=True, slots=True)
class _Queue:
    """Of one group, means: of its collectives in a step, of a collective's time behind others and of its execution."""

    calls: float
    queued_ns: float
    ran_ns: float
    exposed_ns: float  # of a step


def queue_findings(ranks: Sequence[RankFacts], result: Result, summary: Summary) -> Iterator[Finding]:
    """Where they stand longer than they run, and the step waits for them."""
    threads = {name: count for rank in ranks for name, count in rank.queues.items()}
    steps = {(row.rank, row.step) for row in typical_steps(result.steps)[0]}
    by_group: defaultdict[str, list[CollectiveRow]] = defaultdict(list)
    for row in result.collectives:
        if row.group in threads and row.queue_ns is not None and (row.rank, row.step) in steps:
            by_group[row.group].append(row)
    for group, rows in by_group.items():
        queue = _queue(rows, len(steps))
        if queue.queued_ns > queue.ran_ns and queue.exposed_ns >= COSTLY_MIN_RATIO * (summary.window_ns or 0):
            yield _behind(group, threads[group], queue, summary, are_buckets=all(row.bucket for row in rows))


def _queue(rows: Sequence[CollectiveRow], steps: int) -> _Queue:
    return _Queue(
        len(rows) / steps, sum(row.queue_ns or 0 for row in rows) / len(rows),
        sum(row.comm_ns or 0 for row in rows) / len(rows), sum(row.exposed_charged_ns or 0 for row in rows) / steps,
    )  # fmt: skip


def _behind(group: str, threads: int, queue: _Queue, summary: Summary, *, are_buckets: bool) -> Finding:
    share = queue.exposed_ns / (summary.window_ns or 1)
    fewer = "raise bucket_cap_mb (`ddptrace advise` says to what)" if are_buckets else "one flat tensor"
    return Finding("queued", "warning", f"group {group}", (
        f"Collectives of group {group} stand in its queue for longer than they run: {ms(queue.queued_ns)} against"
        f" {ms(queue.ran_ns)} (means of {queue.calls:.0f} in a step), since the backend's {threads} worker threads run"
        f" {threads} at a time; {ms(queue.exposed_ns)} of them are exposed, {percent(share)} of the step. Launch fewer"
        f" and larger ones ({fewer}), or spread them over groups, which have threads of their own, as long as"
        " processors are free for these."
    ))  # fmt: skip
