"""Which rank the others probably wait for, inside the collectives: a guess from means, of a run with too few steps for
`across.blame` to play again."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from ddptrace.analysis.summary import RankSummary, Summary
from ddptrace.analysis.wording import ms
from ddptrace.load.tables import Finding

LATE_MIN_RATIO: Final = 0.05
"""What the least waiting rank is ahead of the next one, as a share of the step, from which on it is called late."""

TELLING: Final = ("data", "forward", "optimizer", "other")
"""Phases in which a late rank spends its time. In backward the others wait for it, so its own is the shorter one."""


def late_rank(summary: Summary) -> Finding | None:
    """One rank that hardly waits where the others wait long: they wait for it, inside the collective."""
    known = [(rank.exposed_comm_ns, rank) for rank in summary.ranks if rank.exposed_comm_ns is not None]
    known.sort(key=itemgetter(0))
    if len(known) < 2 or summary.wall_ns is None:
        return None
    (least_ns, least), (next_ns, _), ranks = known[0], known[1], [rank for _, rank in known]
    ahead = next_ns - least_ns
    if ahead < LATE_MIN_RATIO * summary.wall_ns or 2 * least_ns > next_ns:
        return None
    others = "the other rank" if len(ranks) == 2 else "every other rank at least"
    return Finding("late-rank", "warning", f"rank {least.rank}", (
        f"Rank {least.rank} is probably late: it exposes {ms(least_ns)} of communication and {others}"
        f" {ms(next_ns)}, waiting for it inside the collectives, which counts as running."
        f" It computes {ms(least.compute_ns or 0)} and idles {ms(least.idle_ns or 0)} of a step"
        f"{_longer(least, ranks[1:], ahead) or ': compare its phases with the others'} before you change buckets or the"
        " network."
    ))  # fmt: skip


def _longer(late: RankSummary, others: Sequence[RankSummary], ahead_ns: int) -> str:
    """The phase that makes it late, where one tells at least half of what it is ahead; else nothing."""
    most = {name: max(_phase_ns(rank, name) for rank in others) for name in TELLING}
    name = max(TELLING, key=lambda phase: _phase_ns(late, phase) - most[phase])
    longer_ns = _phase_ns(late, name) - most[name]
    if 2 * longer_ns < ahead_ns:
        return ""
    than = "the other's" if len(others) == 1 else "any other's"
    return f", and its {name} phase is {ms(longer_ns)} longer than {than}: look there"


def _phase_ns(rank: RankSummary, name: str) -> int:
    return next((phase.ns for phase in rank.phases if phase.name == name), 0)
