"""What a traced run says of each all-reduce: how long it waited behind others, for a core, and how long it ran."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Calls:
    """Means over the all-reduces of the profiled steps, in ns, and over rank-steps for `calls` and `span_ns`.

    launch ─ behind ─┬─ idle ─┬── exec ──┐      span: first launch to last end of one step on one rank
                 a worker   begin       end
                 was free
    """

    calls: float
    span_ns: float
    exec_ns: float
    behind_ns: float
    idle_ns: float
    evidence: str

    @property
    def at_once(self) -> float:
        """How many executed at one time, on the mean over the span."""
        return self.calls * self.exec_ns / self.span_ns


Timed = tuple[int, int, int]
"""Launch, begin and end of one call."""


def calls_of(run: Path, threads: int) -> dict[str, Any] | None:
    """`Calls` of a traced run as JSON; None where no execution was seen. `threads`: workers of each group."""
    from ddptrace.bench.traced import analysis

    result = analysis(run)
    profiled = {(step.rank, step.step) for step in result.steps if step.profiled}
    queues: dict[tuple[int, int], dict[str, list[Timed]]] = defaultdict(lambda: defaultdict(list))
    evidence = set()
    for row in result.collectives:
        if row.part or row.step is None or (row.rank, row.step) not in profiled or row.exec_start_at_ns is None:
            continue
        queues[row.rank, row.step][row.group].append((row.launch_at_ns, row.exec_start_at_ns, row.exec_end_at_ns or 0))
        evidence.add("" if row.evidence is None else row.evidence.value)
    return None if not queues else _means(list(queues.values()), threads, "+".join(sorted(evidence)))


def _means(steps: Sequence[dict[str, list[Timed]]], threads: int, evidence: str) -> dict[str, Any]:
    spans, waits = [], []
    for groups in steps:
        calls = [call for queue in groups.values() for call in queue]
        spans.append(max(end for _, _, end in calls) - min(launch for launch, _, _ in calls))
        waits += [wait for queue in groups.values() for wait in waited(queue, threads)]
    behind, idle, ran = (statistics.fmean(part) for part in zip(*waits, strict=True))
    return {
        "calls": len(waits) / len(steps), "span_ns": statistics.fmean(spans), "exec_ns": ran, "behind_ns": behind,
        "idle_ns": idle, "evidence": evidence,
    }  # fmt: skip


def waited(queue: Sequence[Timed], threads: int) -> Iterator[tuple[int, int, int]]:
    """Of each call of one group on one rank: ns behind earlier calls, ns while a worker was free, ns executing."""
    ends: list[int] = []
    for launch, begin, end in sorted(queue):
        free = sorted(ends)[-threads] if len(ends) >= threads else launch
        ready = min(max(launch, free), max(launch, begin))
        yield ready - launch, max(0, begin - ready), end - begin
        ends.append(end)
