"""What is not there on purpose: records that were let go, steps that were not recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ddptrace.analysis.findings.facts import KeptFacts, RankFacts
from ddptrace.analysis.wording import ms, named
from ddptrace.load.tables import Finding


def kept_findings(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    yield from _let_go([rank for rank in ranks if rank.kept.let_go])
    yield from _sampled([rank for rank in ranks if rank.kept.sampled])


def _let_go(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    if not ranks:
        return
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        alike[_steps(rank.kept)].append(rank.rank)
    of = "; ".join(f"{_of(same)} {what}" for what, same in list(alike.items())[:2]) + " …" * (len(alike) > 2)
    yield Finding("records-let-go", "info", named("rank", [rank.rank for rank in ranks]), (
        "The oldest records were let go, a whole file at a time, to stay within what ddptrace.Keep allows a rank:"
        f" {of}. Give keep=ddptrace.Keep(nbytes=...) more, and steps= where you gave it, to see further back."
    ))  # fmt: skip


def _of(ranks: Sequence[int]) -> str:
    return f"of rank {ranks[0]}'s" if len(ranks) == 1 else f"on {named('rank', ranks)} of"


def _steps(kept: KeptFacts) -> str:
    if kept.last_step is None:
        return f"records {kept.let_go} are gone"
    recorded = ", as far as they were recorded" if kept.sampled else ""
    since = "none is whole" if kept.since is None else f"those from step {kept.since} on are here{recorded}"
    others = kept.whole - (0 if kept.since is None else kept.last_step + 1 - kept.since)
    return f"{kept.last_step + 1} steps {since}" + (f", and {others} before" if others > 0 and not kept.sampled else "")


def _sampled(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    if not ranks:
        return
    first, kept = ranks[0].rank, ranks[0].kept
    yield Finding("steps-not-recorded", "info", named("rank", [rank.rank for rank in ranks]), (
        f"Not every step was recorded, as ddptrace.Keep(every=...) has it: of rank {first}'s {_all(kept)} steps"
        f" {kept.whole} are here, and {kept.partial} left only when they began and ended{_lengths(kept)}."
    ))  # fmt: skip


def _all(kept: KeptFacts) -> int:
    """Steps that the rank made, also those of which nothing is left."""
    return kept.whole + kept.partial if kept.last_step is None else kept.last_step + 1


def _lengths(kept: KeptFacts) -> str:
    if kept.whole_ns is None or kept.partial_ns is None:
        return ""
    return f" (median length: {ms(kept.whole_ns)} recorded, {ms(kept.partial_ns)} not)"
