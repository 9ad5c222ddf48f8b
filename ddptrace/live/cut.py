"""Cuts some steps out of one rank's tables, so that neighbouring stretches can be joined again.

A collective with all its parts belongs to the step in which it began to run. So one that runs into the next step is
whole, and in one stretch only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Final, TypeVar

import numpy as np

from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.result import TABLES
from ddptrace.analysis.rpc.rows import RankCalls
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.declare import is_in
from ddptrace.analysis.tables.device import Activity
from ddptrace.analysis.tables.ranks import LOCAL_PHASES, STEP_END, Trail
from ddptrace.load.tables import HostLoad
from ddptrace.schema import line_words

CUTS: Final = {name: table.cut for name, table in TABLES.items() if table.cut is not None}
TRAIL_COLUMNS: Final = ("kind", "at_ns", "seq", "step", "local_ns")
NOTHING: Final = np.empty((0, 2), np.int64)


Row = TypeVar("Row")


def cut(tables: RankTables, steps: range) -> RankTables:
    """Return only the rows of these steps, without intervals that only figures need.

    The counts in the facts are those of these steps.
    """
    chosen = [at for at, row in enumerate(tables.steps) if row.step in steps]
    rows = {name: choose(tables.rows[name], steps) for name, choose in CUTS.items()}
    bounds = [(row.begin_at_ns, row.end_at_ns) for name in ("steps", "partial_steps") for row in rows[name]]
    span = (min(begin for begin, _ in bounds), max(end for _, end in bounds)) if bounds else (0, 0)
    collectives = sum(row.part == 0 for row in rows["collectives"])
    return replace(
        tables,
        row=replace(tables.row, steps=len(rows["steps"]), collectives=collectives),
        facts=_facts(tables.facts, rows["collectives"], steps),
        rows=rows,
        activity=Activity(tables.row.rank, NOTHING, ()),
        rpc=_calls(tables.rpc, steps, span),
        load=_load(tables.load, span),
        trail=_trail(tables.trail, steps),
        waited_ns=tuple(tables.waited_ns[at] for at in chosen) if tables.waited_ns else (),
    )


def counted_facts(facts: RankFacts, rows: Sequence[CollectiveRow]) -> RankFacts:
    """Return the facts with the counts of these collectives."""
    firsts = [row for row in rows if row.part == 0]
    unknown = [row for row in firsts if row.evidence is None]
    return replace(
        facts,
        by_evidence=dict(Counter(row.evidence for row in firsts)),
        unknown_ops=dict(Counter(row.op for row in unknown)),
        unknown_sites=dict(Counter(site for row in unknown if (site := line_words(row.site, row.through)))),
    )


def _facts(facts: RankFacts, rows: Sequence[CollectiveRow], steps: range) -> RankFacts:
    waited = tuple(one for one in facts.waited if is_in(one.step, steps))
    return replace(counted_facts(facts, rows), waited=waited)


def _calls(calls: RankCalls, steps: range, span: tuple[int, int]) -> RankCalls:
    rpc = calls.rpc
    mine = [at for at, step in enumerate(calls.steps) if is_in(step, steps)]
    own = replace(
        rpc,
        calls=tuple(rpc.calls[at] for at in mine),
        runs=_within(rpc.runs, span),
        waits=_within(rpc.waits, span),
    )
    return RankCalls(calls.rank, own, tuple(calls.steps[at] for at in mine))


def _load(load: HostLoad, span: tuple[int, int]) -> HostLoad:
    return HostLoad(*(_within(getattr(load, field.name), span) for field in fields(load)))


def _within(rows: Sequence[Row], span: tuple[int, int]) -> tuple[Row, ...]:
    """Return the rows that began, or were measured, in this span."""
    begin, end = span
    return tuple(row for row in rows if begin <= getattr(row, "begin_at_ns", getattr(row, "at_ns", begin)) < end)


def _trail(trail: Trail, steps: range) -> Trail:
    """Cut the trail from the end of the step before these to the end of the last one."""
    ends = np.flatnonzero(trail.kind == STEP_END)
    ordinals = trail.step[ends]
    before, mine = ends[ordinals < steps.start], ends[(ordinals >= steps.start) & (ordinals < steps.stop)]
    first, stop = (int(before[-1]) + 1 if len(before) else 0), (int(mine[-1]) + 1 if len(mine) else 0)
    return part_of(trail, slice(first, max(first, stop)))


def part_of(trail: Trail, events: slice) -> Trail:
    columns = {name: getattr(trail, name)[events] for name in TRAIL_COLUMNS}
    return replace(trail, **columns)


def no_trail(rank: int) -> Trail:
    nothing = np.zeros(0, np.int64)
    return Trail(rank, nothing, nothing, nothing, nothing, np.zeros((0, len(LOCAL_PHASES)), np.int64))
