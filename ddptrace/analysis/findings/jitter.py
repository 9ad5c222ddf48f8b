"""What makes some steps longer than others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.findings.facts import RankFacts
from ddptrace.analysis.findings.suspects import CROWDED
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.steps import JitterRow
from ddptrace.analysis.wording import ms, named, percent
from ddptrace.load.tables import Finding

LONG_MIN_RATIO: Final = 1.3
"""So many times the median must one step in twenty take."""

FEWEST_STEPS: Final = 40
"""Of fewer, one in twenty is one, and tells nothing."""

SHARE_MIN_RATIO: Final = 0.5
"""Of the variance."""

WITHOUT_COMPUTING: Final = ("data",)

LOOK: Final = {
    "data": "at what its data loader reads now and then, and at its workers",
    "forward": "at whether its inputs differ in size from step to step, and at what else runs on its machine",
    "backward": "at whether its inputs differ in size from step to step, and at what else runs on its machine",
    "optimizer": "at what else its update does now and then",
    "other": "at what the loop does now and then: logging, evaluation, checkpoints, garbage collection",
}


def jitter_findings(ranks: Sequence[RankFacts], result: Result, said: Sequence[Finding]) -> Iterator[Finding]:
    """The part that the step varies with most, of a rank that does not just wait for others. Not where optimizers take
    turns, whose steps are not alike. Where all ranks wait for a processor, as is `said` then, computing varies with
    that, and only data is told of."""
    if any(rank.in_turn for rank in ranks):
        return
    told = WITHOUT_COMPUTING if any(finding.code == CROWDED for finding in said) else tuple(LOOK)
    steps = {row.rank: row for row in result.jitter if row.part == "step" and row.steps >= FEWEST_STEPS}
    long = {rank for rank, row in steps.items() if row.p95_ns >= LONG_MIN_RATIO * row.median_ns}
    parts = [row for row in result.jitter if row.part in told and row.rank in long]
    varying = [row for row in parts if (row.share_ratio or 0) >= SHARE_MIN_RATIO]
    if varying:
        worst = max(varying, key=lambda row: row.share_ratio or 0)
        yield _jitter(worst, steps[worst.rank], sorted(row.rank for row in varying if row.part == worst.part))


def _jitter(worst: JitterRow, step: JitterRow, ranks: list[int]) -> Finding:
    where = named("rank", ranks)
    return Finding("jitter", "warning", where, (
        f"Steps vary: one in twenty takes {ms(step.p95_ns)} or more, {step.p95_ns / step.median_ns:.1f} times the"
        f" median of {ms(step.median_ns)} ({step.steps} steps). {percent(worst.share_ratio or 0)} of that variance is"
        f" the {worst.part} phase of rank {worst.rank} (median {ms(worst.median_ns)}, one in twenty from"
        f" {ms(worst.p95_ns)} on): look {LOOK[worst.part]}."
    ))  # fmt: skip
