"""Collectives that failed, mostly since a peer was gone: what a crash leaves to be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddptrace.analysis.findings.facts import Failure, RankFacts
from ddptrace.load.tables import Finding


def failure_findings(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Of each rank the first: what fails after it mostly fails for the same reason."""
    for rank in (rank for rank in ranks if rank.failures):
        first, rest = rank.failures[0], len(rank.failures) - 1
        more = f" ({rest} more failed after it)" if rest else ""
        yield Finding("collective-failed", "error", f"rank {rank.rank}", (
            f"{first.op.rstrip('_')} number {first.ordinal} of group {first.group} failed on rank"
            f" {rank.rank}{_when(first)}: {first.error.rstrip('.')}{more}."
        ))  # fmt: skip


def _when(failure: Failure) -> str:
    if failure.step is not None:
        return f" in step {failure.step}"
    return "" if failure.after is None else f" after step {failure.after}"
