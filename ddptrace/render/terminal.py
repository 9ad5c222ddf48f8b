"""What a person understands in ten seconds, in at most 96 columns of plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.summary import BucketSummary, RankSummary, Share, Summary, summarize
from ddptrace.analysis.tables import Result
from ddptrace.load.tables import Finding
from ddptrace.render.words import (
    EVIDENCE,
    PARTS,
    bucket_numbers,
    counted,
    duration,
    gravest_first,
    millis,
    percent,
    printable,
    size,
)

WIDTH: Final = 96
BAR: Final = 40
MOST_BUCKETS: Final = 5
MOST_RANKS: Final = 8
MOST_FINDINGS: Final = 6
ADVICE: Final = ("late-rank", "exposed-bucket", "exposed-communication", "well-hidden")
"""Findings that say what to do next; they have a place of their own."""


def summary_text(result: Result) -> str:
    """The whole summary, its lines ending in a newline."""
    summary = summarize(result)
    advice = [finding for finding in result.findings if finding.code in ADVICE]
    others = [finding for finding in result.findings if finding.code not in ADVICE]
    sections = [
        [title(result)],
        list(step_lines(summary)),
        list(bucket_lines(summary.buckets)),
        list(rank_lines(summary.ranks)),
        list(finding_lines("Findings", gravest_first(others))),
        list(finding_lines("Look at next", advice)),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def title(result: Result) -> str:
    counts = counted(len(result.ranks), "rank"), counted(len({row.step for row in result.steps}), "step")
    return " · ".join(("ddptrace", f"run {printable(result.run_id[:8])}", *counts))


def step_lines(summary: Summary) -> Iterator[str]:
    """Where the typical step goes."""
    if summary.window_ns is None:
        yield "No step was found, so there is nothing to break down."
        return
    yield f"Typical step {duration(summary.wall_ns)}  (mean of {summary.steps:,} rank-steps: {summary.population})"
    for part in summary.parts:
        if part.ns or part.name != "exposed_memory":
            yield part_line(part)
    yield f"  {phase_words(summary.phases)}"
    yield ""
    yield from textwrap.wrap(overlap_words(summary), WIDTH, initial_indent="  ", subsequent_indent="  ")


def part_line(part: Share) -> str:
    bar = bar_of(part.ratio)
    return f"  {PARTS[part.name]:<22} {bar:<{BAR}} {millis(part.ns):>9} ms  {percent(part.ratio):>6}"


def phase_words(phases: Sequence[Share]) -> str:
    """As in "data 3 % · forward 24 % · backward 61 % · optimizer 8 % · other 4 %"."""
    return " · ".join(f"{phase.name} {percent(phase.ratio)}" for phase in phases)


def bar_of(ratio: float) -> str:
    """A bar of eighths; what is not nothing is drawn at least as one."""
    eighths = max(round(ratio * BAR * 8), 1) if ratio > 0 else 0
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def overlap_words(summary: Summary) -> str:
    if not summary.comm_ns or summary.evidence is None:
        return "No communication was measured in these steps, so there is no overlap to tell."
    compute = "" if summary.profiled else " Compute is taken from phases, not from a profiler: coarse."
    return (
        f"{percent(summary.overlap_ratio)} of {duration(summary.comm_ns)} communication is hidden behind compute"
        f" (evidence {summary.evidence}: {EVIDENCE[summary.evidence]}).{compute}"
    )


def bucket_lines(buckets: Sequence[BucketSummary]) -> Iterator[str]:
    """The buckets that the step waits for, worst first."""
    exposed = [bucket for bucket in buckets if bucket.exposed_charged_ns]
    if not exposed:
        return
    yield f"Most exposed buckets  ({min(MOST_BUCKETS, len(exposed))} of {len(buckets)})"
    yield f"  {'bucket':<20} {'size':>8}  {'exposed ms':>10}  {'of step':>7}  {'hidden':>6}  last parameter"
    for name, bucket in zip(bucket_numbers(exposed), exposed[:MOST_BUCKETS], strict=False):
        figures = f"{millis(bucket.exposed_charged_ns):>10}  {percent(bucket.step_ratio):>7}  {hidden_words(bucket):>6}"
        last = shortened(printable(bucket.parameters[-1]), WIDTH - 63) if bucket.parameters else ""
        yield f"  {name:<20} {size(bucket.nbytes):>8}  {figures}  {last}".rstrip()


def hidden_words(bucket: BucketSummary) -> str:
    return percent(bucket.hidden_ns / bucket.comm_ns if bucket.comm_ns and bucket.hidden_ns is not None else None)


def shortened(name: str, most: int) -> str:
    """The end of a long name: there parameters differ."""
    return name if len(name) <= most else "…" + name[1 - most :]


def rank_lines(ranks: Sequence[RankSummary]) -> Iterator[str]:
    """Each rank's typical step; of many ranks the slowest."""
    if not ranks:
        return
    shown = ranks
    if len(ranks) > MOST_RANKS:
        shown = sorted(ranks, key=lambda rank: -rank.wall_ns)[:MOST_RANKS]
    yield "Ranks" + (f"  (the {MOST_RANKS} slowest of {len(ranks)})" if len(ranks) > MOST_RANKS else "")
    yield f"  {'rank':<6} {'step ms':>9} {'compute ms':>11} {'exposed ms':>11} {'idle ms':>9} {'hidden':>7}"
    for rank in shown:
        times = f"{millis(rank.wall_ns):>9} {millis(rank.compute_ns):>11} {millis(rank.exposed_comm_ns):>11}"
        yield f"  {rank.rank:<6} {times} {millis(rank.idle_ns):>9} {percent(rank.overlap_ratio):>7}"


def finding_lines(heading: str, findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        return
    yield heading
    for finding in findings[:MOST_FINDINGS]:
        told = f"{printable(finding.message)}"
        yield from textwrap.wrap(told, WIDTH, initial_indent=f"  {finding.severity:<8} ", subsequent_indent=" " * 11)
    if len(findings) > MOST_FINDINGS:
        yield f"  … and {len(findings) - MOST_FINDINGS} more in the report"
