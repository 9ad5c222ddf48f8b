"""Finds what makes steps slow or uneven, and judges the profiler windows of a run without steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.findings.collectives import TRY
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.steps.windows import summarize_windows
from ddptrace.analysis.summary import WORTH_RATIO, Summary
from ddptrace.analysis.tables.steps import JitterRow
from ddptrace.findings import CONTENTION, DATA_BOUND, EXPOSED_COMMUNICATION, JITTER, WELL_HIDDEN, Finding
from ddptrace.units import duration, named, percent

DATA_MIN_RATIO: Final = 0.1
"""Of the typical step."""
SLOWER_MIN_RATIO: Final = 0.1
COSTLY_MIN_RATIO: Final = 0.005
"""Of the profiled steps."""
ON_DEVICE: Final = (
    "kernels",
    "NCCL's channels use processors and memory bandwidth of the device. Fewer channels (NCCL_MAX_CTAS,"
    " NCCL_MAX_NCHANNELS) leave more for compute, as long as communication stays hidden.",
)
ON_HOST: Final = (
    "operators",
    "The backend's threads use the same processors. Leave some free for them (fewer torch threads, fewer ranks on a"
    " machine).",
)


def data_findings(summary: Summary, result: Result) -> Iterator[Finding]:
    """Reading data, where neither kernels nor events tell what idled meanwhile. If a rank is named for it, only what
    the quickest rank reads counts."""
    data = next((phase for phase in summary.phases if phase.name == "data"), None)
    if data is None or result.launches or summary.unsure_ns is not None or data.ratio <= DATA_MIN_RATIO:
        return
    by_rank = {rank.rank: sum(part.ns for part in rank.phases if part.name == "data") for rank in summary.ranks}
    is_of_one = any(suspect.cause == "data" for suspect in result.suspects)
    if is_of_one and data.ratio * min(by_rank.values()) <= DATA_MIN_RATIO * data.ns:
        return
    longest = max(by_rank, key=lambda rank: (by_rank[rank], -rank))
    uneven = by_rank[longest] > (1 + DATA_MIN_RATIO) * data.ns
    whole = "a profiled step" if summary.is_apart else "the typical step"
    most = f", most on rank {longest} ({duration(by_rank[longest])})" if uneven else ""
    yield DATA_BOUND(
        "run",
        f"Reading data takes {percent(data.ratio)} of {whole} ({duration(data.ns)}, mean of the ranks){most}:"
        " give the data loader more workers (num_workers, prefetch_factor), or make the transforms cheaper.",
    )


def contention_findings(result: Result) -> Iterator[Finding]:
    """Over all kernels or operators that ran both alone and beside communication."""
    alone_ns = sum(row.alone_ns * row.beside for row in result.contention)
    tax_ns, steps = sum(row.tax_ns for row in result.contention), [row for row in result.steps if row.profiled]
    window_ns = sum(row.window_ns for row in steps)
    if tax_ns < max(SLOWER_MIN_RATIO * alone_ns, COSTLY_MIN_RATIO * window_ns, 1):
        return
    what, advice = ON_DEVICE if any(row.all is not None for row in result.ranks) else ON_HOST
    dearest, dearest_ns = _dearest(result)
    yield CONTENTION(
        "run",
        f"Compute takes longer while communication runs: {sum(row.beside for row in result.contention)} {what} that"
        f" would take {duration(alone_ns)} alone took {percent(tax_ns / alone_ns)} longer beside it. This costs"
        f" {duration(tax_ns)} in {len(steps)} profiled rank-steps ({percent(tax_ns / window_ns)} of them), most of it"
        f" in {dearest} ({duration(dearest_ns)}), and counts as compute, not as communication. {advice}",
    )


def _dearest(result: Result) -> tuple[str, int]:
    """The kernel or operator with the highest cost, without template arguments, and its cost."""
    taxes: Counter[str] = Counter()
    for row in result.contention:
        taxes[row.name] += row.tax_ns
    name, tax_ns = taxes.most_common(1)[0]
    return name.removeprefix("void ").partition("<")[0].partition("(")[0], tax_ns


# Steps that vary ------------------------------------------------------------------------------------------------------


LONG_MIN_RATIO: Final = 1.3
"""Times the median. One step in twenty must take at least this long."""
FEWEST_STEPS: Final = 40
"""Of fewer steps, one in twenty is a single step and shows nothing."""
SHARE_MIN_RATIO: Final = 0.5
"""Of the variance."""
WITHOUT_COMPUTING: Final = ("data",)
LOOK: Final = {
    "data": "at what its data loader reads in some steps, and at its workers",
    "forward": "at whether its inputs differ in size from step to step, and at what else runs on its machine",
    "backward": "at whether its inputs differ in size from step to step, and at what else runs on its machine",
    "optimizer": "at what else its update does in some steps",
    "other": "at what the loop does in some steps: logging, evaluation, checkpoints, garbage collection",
}


def jitter_findings(ranks: Sequence[RankFacts], result: Result, *, crowded: bool) -> Iterator[Finding]:
    """Name the part that the step varies with most, on a rank that does not just wait for others. If optimizers take
    turns, steps are not alike, and there is no finding. `crowded`: all ranks wait for a processor; computing varies
    with that, so only data is judged."""
    if any(rank.in_turn for rank in ranks):
        return
    told = WITHOUT_COMPUTING if crowded else tuple(LOOK)
    steps = {row.rank: row for row in result.jitter if row.part == "step" and row.steps >= FEWEST_STEPS}
    long = {rank for rank, row in steps.items() if row.p95_ns >= LONG_MIN_RATIO * row.median_ns}
    parts = [row for row in result.jitter if row.part in told and row.rank in long]
    varying = [row for row in parts if (row.share_ratio or 0) >= SHARE_MIN_RATIO]
    if varying:
        worst = max(varying, key=lambda row: row.share_ratio or 0)
        yield _jitter(worst, steps[worst.rank], sorted(row.rank for row in varying if row.part == worst.part))


def _jitter(worst: JitterRow, step: JitterRow, ranks: list[int]) -> Finding:
    where = named("rank", ranks)
    return JITTER(
        where,
        f"Steps vary: one in twenty takes {duration(step.p95_ns)} or more, {step.p95_ns / step.median_ns:.1f} times the"
        f" median of {duration(step.median_ns)} ({step.steps} steps). {percent(worst.share_ratio or 0)} of the variance"
        f" comes from the {worst.part} phase of rank {worst.rank} (median {duration(worst.median_ns)}; one in twenty"
        f" takes {duration(worst.p95_ns)} or more): look {LOOK[worst.part]}.",
    )


# Windows of a run without steps ---------------------------------------------------------------------------------------


def window_findings(result: Result) -> Iterator[Finding]:
    """Judge the mean window as `bucket_findings` judges the typical step; nothing where steps are known."""
    window = summarize_windows(result)
    if window is None or not window.comm_ns:
        return
    exposed = window.part("exposed_comm")
    if exposed.ratio < WORTH_RATIO:
        yield WELL_HIDDEN(
            "run",
            f"Communication is well hidden: only {percent(exposed.ratio)} of the profiled window waits for it"
            f" ({duration(exposed.ns)} exposed of {duration(window.comm_ns)}). Look for time elsewhere.",
        )
        return
    by_kind: Counter[tuple[str, str | None]] = Counter()
    for row in result.collectives:
        by_kind[row.op.rstrip("_"), row.origin] += row.exposed_charged_ns or 0
    said = f"{duration(exposed.ns)} of communication are exposed, {percent(exposed.ratio)} of the profiled window."
    largest = next(iter(by_kind.most_common(1)), None)
    if largest is None:
        yield EXPOSED_COMMUNICATION("run", f"{said} No kernel of it could be joined to a collective.")
    else:
        (op, origin), ns = largest
        source = f" ({origin or 'origin unknown'})"
        part = f"The largest part is {op}{source} with {duration(ns / window.windows)}"
        yield EXPOSED_COMMUNICATION("run", f"{said} {part}: {TRY.get(origin or '', 'look at what it waits for')}.")
