"""Cuts some steps out of one rank's tables, and joins neighbouring stretches again.

A collective with all its parts belongs to the step in which it began to run. So one that runs into the next step is
whole, and in one stretch only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np

from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.result import TABLES
from ddptrace.analysis.rpc.rows import RankCalls
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.declare import is_in
from ddptrace.analysis.tables.device import Activity
from ddptrace.analysis.tables.ranks import LOCAL_PHASES, STEP_END, WAIT, Trail
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


def joined(parts: Sequence[RankTables]) -> RankTables:
    """Join consecutive stretches of one rank. Facts about the whole rank come from the last stretch."""
    last = parts[-1]
    rows = {name: tuple(chain.from_iterable(part.rows[name] for part in parts)) for name in last.rows}
    calls = sum(part.row.collectives for part in parts)
    return replace(
        last,
        row=replace(last.row, steps=len(rows["steps"]), collectives=calls),
        facts=_joined_facts(parts, rows["collectives"]),
        rows=rows,
        rpc=_joined_calls([part.rpc for part in parts]),
        load=HostLoad(*(_added([part.load for part in parts], field.name) for field in fields(last.load))),
        trail=_joined_trail([part.trail for part in parts], rows["steps"][0].begin_at_ns if rows["steps"] else None),
        waited_ns=_added(parts, "waited_ns"),
    )


def _joined_facts(parts: Sequence[RankTables], collectives: Sequence[CollectiveRow]) -> RankFacts:
    """Join the facts. The rank counts as running, and its steps before these as deleted."""
    every = [one.facts for one in parts]
    facts = counted_facts(every[-1], collectives)
    return replace(
        facts,
        clean=False,
        ended_by=tuple(sorted(set(chain.from_iterable(one.ended_by for one in every)))),
        hooks=tuple(sorted(set(chain.from_iterable(one.hooks for one in every)))),
        failures=tuple(dict.fromkeys(chain.from_iterable(one.failures for one in every))),
        remote_calls=sum(one.remote_calls for one in every),
        unmatched=max(one.unmatched for one in every),
        waited=tuple(chain.from_iterable(one.waited for one in every)),
        kept=replace(facts.kept, let_go=max(1, facts.kept.let_go), sampled=any(one.kept.sampled for one in every)),
    )


def _joined_calls(parts: Sequence[RankCalls]) -> RankCalls:
    rpcs = [one.rpc for one in parts]
    rpc = replace(rpcs[-1], **{name: _added(rpcs, name) for name in ("calls", "runs", "waits")})
    return RankCalls(parts[-1].rank, rpc, _added(parts, "steps"))


def _added(parts: Sequence[object], name: str) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(getattr(one, name) for one in parts))


def _joined_trail(parts: Sequence[Trail], begin_at_ns: int | None) -> Trail:
    """Join the trails. `begin_at_ns`: begin of the first step, where the trail begins."""
    told = [one for one in parts if len(one.at_ns)]
    if not told or begin_at_ns is None:
        return no_trail(parts[-1].rank)
    if not _begins(told[0]):
        told = [_start(told[0], begin_at_ns), *told]
    columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in told]) for name in TRAIL_COLUMNS}
    return replace(told[-1], **columns)


def _begins(trail: Trail) -> bool:
    return bool(trail.kind[0] == WAIT and trail.seq[0] < 0)


def _start(trail: Trail, at_ns: int) -> Trail:
    one, nobody = np.array([at_ns], np.int64), np.array([-1], np.int64)
    return Trail(
        trail.rank, np.array([WAIT], np.int64), one, nobody, nobody, np.zeros((1, len(LOCAL_PHASES)), np.int64)
    )
