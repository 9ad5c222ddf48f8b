"""What a reader has to know before a comparison is believed, and what only one side's runs were told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from ddptrace.analysis.diff.figures import RunFigures
from ddptrace.analysis.diff.settings import COMPUTE
from ddptrace.analysis.diff.tables import Basis, ComparedRun
from ddptrace.load.tables import Finding

FEW: Final = (
    "{few}, so nothing tells what runs differ by of themselves: this is how these very runs differ, and the next ones"
    " may not. Give several runs a side, that took turns (--repeat 6 makes them)"
)


def cautions(
    before: Sequence[RunFigures], after: Sequence[RunFigures], basis: Basis, runs: Sequence[ComparedRun]
) -> Iterator[Finding]:
    if basis in ("blocks", "none"):
        few = "one run a side" if len(runs) == 2 else f"{len(runs)} runs in all"
        yield Finding("few-runs", "warning", "runs", FEW.format(few=few))
    if basis == "none":
        yield Finding("short-runs", "warning", "runs", "a run has too few steps to tell what steps differ by of "
                      "themselves: 17 or more are needed")  # fmt: skip
    if min(len(before), len(after)) >= 2 and sum(one.side != two.side for one, two in pairwise(runs)) == 1:
        first, last = ("before", "after") if runs[0].side == "before" else ("after", "before")
        yield Finding(
            "not-in-turns", "warning", "runs",
            f"all runs of the {first} side ran before those of the {last} side: whatever else changed on the machines "
            "in between counts as a change here. Let them take turns (--repeat does)",
        )  # fmt: skip
    yield from _measured_apart(before, after)
    yield from _told_apart(before, after)


def _measured_apart(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> Iterator[Finding]:
    first, second = ({(run.settings.get(COMPUTE, "?"), run.evidence) for run in side} for side in (before, after))
    if not first & second:
        ways = [" or ".join(sorted(_how(*one) for one in side)) for side in (first, second)]
        yield Finding(
            "measured-apart", "warning", "runs",
            f"the sides were not measured alike (compute from {ways[0]} before, {ways[1]} after): parts, buckets and "
            "ranks are left out. Record both with a profiler window, or both without",
        )  # fmt: skip


def _how(compute: str, evidence: str) -> str:
    return f"{compute} and communication from {evidence or 'nothing'}"


def _told_apart(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> Iterator[Finding]:
    """Findings of all runs of one side and of none of the other."""
    counts = [Counter(code for run in side for code in run.findings) for side in (before, after)]
    for code in sorted({*counts[0], *counts[1]}):
        told = [count[code] for count in counts]
        if told in ([len(before), 0], [0, len(after)]):
            side = "before" if told[0] else "after"
            yield Finding(
                "told-of-one-side", "info", code,
                f"`ddptrace analyze` says {code} of every run {side} and of none on the other side",
            )  # fmt: skip
