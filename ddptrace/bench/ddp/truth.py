"""What a trace says of each strategy, and how much of its communication was more than waiting for a later rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ddptrace.analysis.result import Result
from ddptrace.bench import traced
from ddptrace.bench.job import Job


def of_each(
    job: Job, steps: Mapping[str, Callable[[], None]], called: Callable[[str], str]
) -> dict[str, dict[str, Any]]:
    """By strategy; empty but on rank 0. `called`: the name of its run. Collective."""
    results = traced.analyzed(job, steps, called)
    return {name: asdict(traced.truth(run)) | {"transfer_ns": transfer_ns(run)} for name, run in results.items()}


def transfer_ns(result: Result) -> int | None:
    """A profiled step's mean sum over its collectives, of each the shortest execution over the ranks: on the rank that
    came last, which waited for nobody. None where ranks cannot be compared, or not in all of its collectives."""
    steps = {(row.rank, row.step) for row in result.steps if row.profiled and row.step}
    first = min((rank for rank, _ in steps), default=None)
    mine = {row.match for row in result.collectives if row.rank == first and (row.rank, row.step) in steps}
    if not mine or None in mine:
        return None
    count = sum(rank == first for rank, _ in steps)
    return round(sum(result.matches[match].transfer_ns for match in mine if match is not None) / count)
