"""Which rank cost the others time, how much, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.matching.calls import Partial
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.causes import SLOW_LINK, Cause, Held, held_in
from ddptrace.analysis.ranks.critical_path import TRANSFER
from ddptrace.analysis.ranks.crossings import ComparedRanks, crossings_of
from ddptrace.analysis.ranks.links import SlowHost, fast_of_its_kind, slow_host
from ddptrace.analysis.ranks.replay import (
    QUESTIONS,
    Costs,
    common_steps,
    cost_of_slower_transfers,
    costs_of,
    disorder_ratio,
    own_time,
    step_lengths,
)
from ddptrace.analysis.ranks.suspects import (
    LEAST_OF_FIRST,
    MIN_STEPS,
    SHORT_STEPS,
    USUAL_SHARE,
    WHOLE,
    average,
    costs_of_suspects,
    dearest_of_few,
    is_dear,
    is_persistent,
    suspect_row,
    suspect_rows,
    unsure,
)
from ddptrace.analysis.summary import PAUSED_MAX_RATIO
from ddptrace.analysis.tables.ranks import LOCAL_PHASES, BlameRow, MatchRow, SuspectRow

WARM_UP: Final = 2
"""So many of the first steps are left out: programs build and warm up, and DDP orders its buckets anew."""

MAX_OFF_RATIO: Final = 0.02
"""So far the replay of the run as it was may be from what was measured."""


CROWDED_RATIO: Final = 0.1
"""If ranks wait for a processor for this share of the step, their machine is too small for them."""


@dataclass(frozen=True, slots=True)
class Seeming:
    """A rank that would be named if a longer run went on like this."""

    rank: int
    cost_ns: float  # of a step, mean
    cost_ratio: float  # of the median step, or of the typical one
    steps: int  # that were judged
    steps_needed: int  # to be traced for certainty


@dataclass(frozen=True, slots=True)
class Early:
    """The rank that cost the recorded steps most, where they are too few to tell chance from a habit."""

    rank: int
    phase: str  # of `LOCAL_PHASES`, in which most of the cost lies
    longer_ns: float  # this phase's time over the others' median, per step
    cost_ns: float  # of a step, mean
    cost_ratio: float  # of the median step, or of the typical one
    steps: int  # that were judged
    dear: int  # of these, steps in which this rank cost most of all
    steps_needed: int  # to be traced for certainty


@dataclass(frozen=True, slots=True)
class Crowding:
    """All ranks wait for a processor."""

    queued_ns: float  # in a step, median of the ranks; at most the time in which their threads did not run
    step_ns: float  # the usual steps' mean, or the typical step
    counted_ns: float  # as the system counts it, which may be more
    on_device: bool  # then `queued_ns` is at most the time in which the device was idle


@dataclass(frozen=True, slots=True)
class Blame:
    """`rows`: by step, dearest first. `suspects`: those that are named."""

    rows: tuple[BlameRow, ...] = ()
    suspects: tuple[SuspectRow, ...] = ()
    seeming: Seeming | None = None  # if nobody is named
    early: Early | None = None  # if nobody is named or seems to be late, and the machine is not crowded
    crowding: Crowding | None = None
    partial: tuple[Partial, ...] = ()  # groups of which ranks are missing: then nobody is blamed
    off_ratio: float | None = None  # how far the replay is off, if that is too far: then nobody is blamed

    def of_typical(self, step_ns: int) -> Blame:
        """Return the same with every share of the typical step, which has this length, instead of the median step."""
        return replace(
            self,
            suspects=tuple(replace(one, cost_ratio=one.cost_ns / step_ns) for one in self.suspects),
            seeming=self.seeming and replace(self.seeming, cost_ratio=self.seeming.cost_ns / step_ns),
            early=self.early and replace(self.early, cost_ratio=self.early.cost_ns / step_ns),
            crowding=self.crowding and replace(self.crowding, step_ns=step_ns),
        )

    @property
    def is_comparable(self) -> bool:
        """Whether times of one rank may be compared with those of another."""
        return not self.partial and self.off_ratio is None


def blame_of(met: ComparedRanks) -> Blame:
    """From the ranks' trails and what they met in. Nobody is blamed where no rank had to wait for another,
    nor where some ranks are not here: whoever was late may not have been the last."""
    if met.partial:
        return Blame(partial=tuple(met.partial))
    tables, crossings, steps = met.tables, met.crossings, _judged(met.tables)
    trails = [table.trail for table in tables]
    if len(tables) < 2 or not len(steps) or not crossings.needed.any():
        return Blame()
    costs = costs_of(trails, crossings, steps)
    off = max(disorder_ratio(trails, crossings), _off_ratio(costs, tables))
    if off > MAX_OFF_RATIO:
        return Blame(off_ratio=off)
    suspects = _suspects(tables, met.matches, costs)
    seeming = None if suspects else _seeming(costs, tables)
    crowding = _crowding(costs, tables)
    is_told = suspects or seeming is not None or crowding is not None  # a crowded machine makes any rank late
    early = None if is_told else _early(costs, tables)
    return Blame(tuple(_rows(costs, tables)), suspects, seeming, early, crowding)


def _seeming(costs: Costs, tables: Sequence[RankTables]) -> Seeming | None:
    if (found := unsure(costs)) is None:
        return None
    position, cost = found
    ratio = cost.mean / costs.typical_ns
    return Seeming(tables[position].row.rank, cost.mean, ratio, len(costs.steps), SHORT_STEPS + WARM_UP)


def _early(costs: Costs, tables: Sequence[RankTables]) -> Early | None:
    """The one rank that stands out."""
    found = dearest_of_few(costs, on_device=all(table.trail.on_device for table in tables))
    if found is None:
        return None
    at, cost_ns = found
    cost = costs.cost_ns[:, WHOLE]
    phase = int(costs.cost_ns[at, :WHOLE].mean(axis=1).argmax())
    longer_ns = float(costs.excess_ns[at, phase].mean())
    dear = int((cost.argmax(axis=0) == at).sum())
    rank, ratio = tables[costs.ranks[at]].row.rank, cost_ns / costs.typical_ns
    return Early(rank, LOCAL_PHASES[phase], longer_ns, cost_ns, ratio, len(costs.steps), dear, MIN_STEPS + WARM_UP)


def _crowding(costs: Costs, tables: Sequence[RankTables]) -> Crowding | None:
    usual = costs.step_ns <= np.quantile(costs.step_ns, USUAL_SHARE)
    known = [
        (held, most_ns)
        for table in tables
        if (held := held_in(table, costs.steps[usual])).queued_ns is not None
        and (most_ns := _most_felt(table, costs.steps[usual])) is not None
    ]
    if not known:
        return None
    step_ns = float(costs.step_ns[usual].mean())
    queued_ns = median(
        min(held.queued_ns or 0.0, max(step_ns - (held.cpu_ns or 0.0), 0.0), most_ns) for held, most_ns in known
    )
    if not queued_ns >= CROWDED_RATIO * step_ns > 0:
        return None
    counted_ns = median(held.counted_ns or 0.0 for held, _ in known)
    return Crowding(queued_ns, step_ns, counted_ns, any(table.trail.on_device for table in tables))


def _most_felt(table: RankTables, steps: Ints) -> float | None:
    """Return how much of a step can be lost while the host waits for a processor: on a device, what it is idle. None
    where nothing tells that."""
    if not table.trail.on_device:
        return math.inf
    wanted = set(steps.tolist())
    idle = [row.idle_ns for row in table.steps if row.step in wanted and row.idle_ns is not None]
    return float(np.mean(idle)) if idle else None


def _judged(tables: Sequence[RankTables]) -> Ints:
    """Ordinals of the steps that all ranks have, but for the first ones and those that ddptrace itself held up."""
    paused = {row.step for table in tables for row in table.steps if row.paused_ns > PAUSED_MAX_RATIO * row.wall_ns}
    steps = common_steps([table.trail for table in tables])
    return steps[(steps >= WARM_UP) & ~np.isin(steps, list(paused))]


def _off_ratio(costs: Costs, tables: Sequence[RankTables]) -> float:
    measured = np.mean([step_lengths(table.trail, costs.steps) for table in tables], axis=0)
    return float(np.median(np.abs(costs.step_ns - measured)) / max(float(np.median(measured)), 1.0))


def _suspects(tables: Sequence[RankTables], matches: Sequence[MatchRow], costs: Costs) -> tuple[SuspectRow, ...]:
    """Ranks that are late. A slow link goes first where no rank of another host is."""
    own = np.stack([own_time(table.trail, costs.steps).mean(axis=1) for table in tables], axis=1)
    ranks = [(table.row.rank, table.row.host) for table in tables]

    def held(steps: Ints) -> list[Held]:
        return [held_in(table, steps) for table in tables]

    late = tuple(suspect_rows(costs_of_suspects(costs, np.rint(own).astype(np.int64), held), costs, ranks))
    slow = slow_host(tables, matches)
    if slow is None or any(suspect.host != slow.host for suspect in late):
        return late
    link = _slow_link(slow, tables, matches, costs)
    if link is None:
        return late
    return (link, *(suspect for suspect in late if suspect.cost_ns >= LEAST_OF_FIRST * link.cost_ns))


def _slow_link(
    slow: SlowHost, tables: Sequence[RankTables], matches: Sequence[MatchRow], costs: Costs
) -> SuspectRow | None:
    """Played with transfers between this host and others as fast as its links were the others', and as fast as they
    themselves are when they are: a link that is slow now and then is fast on the mean. A transfer ends when the last
    rank has it, which is the one that the slow link leads to."""
    inside = set(slow.ranks)
    crosses = np.array([bool(inside & set(row.ranks)) and not inside >= set(row.ranks) for row in matches], np.bool_)
    late = crossings_of(tables, [replace(row, first_end_at_ns=row.last_end_at_ns) for row in matches])
    faster = np.rint(late.transfer_ns * slow.ratio).astype(np.int64), fast_of_its_kind(matches, late.transfer_ns)
    played = [np.where(crosses, one, late.transfer_ns) for one in faster]
    saved = max(cost_of_slower_transfers([table.trail for table in tables], late, costs.steps, played), key=np.mean)
    cost = average(saved)
    if not is_dear(cost, costs):
        return None
    speeds = slow.bytes_per_s / 1e6, slow.others_bytes_per_s / 1e6
    cause = Cause(SLOW_LINK, "its links carry {:.1f} MB/s while busy, those of the other hosts {:.1f}".format(*speeds))
    who = slow.ranks[0], slow.host
    return suspect_row(who, TRANSFER, cause, cost, costs, persistent=is_persistent(saved))


def _rows(costs: Costs, tables: Sequence[RankTables]) -> Iterator[BlameRow]:
    rank, question, step = (index.ravel() for index in np.indices(costs.cost_ns.shape))
    cost, excess = costs.cost_ns.ravel(), costs.excess_ns.ravel()
    order = np.lexsort((question, rank, -cost, step))
    ranks = np.array([tables[position].row.rank for position in costs.ranks], np.int64)
    columns = ranks[rank[order]], costs.steps[step[order]], question[order], cost[order], excess[order]
    for who, when, what, cost_ns, excess_ns in zip(*(column.tolist() for column in columns), strict=True):
        yield BlameRow(who, when, QUESTIONS[what], cost_ns, excess_ns)
