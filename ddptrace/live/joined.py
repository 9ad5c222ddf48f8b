"""Joins stretches of one rank's steps that were cut out of different tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

import numpy as np

from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.rpc.rows import RankCalls
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import LOCAL_PHASES, WAIT, Trail
from ddptrace.live.cut import TRAIL_COLUMNS, counted_facts, no_trail
from ddptrace.load.tables import HostLoad


def joined(parts: Sequence[RankTables]) -> RankTables:
    """Join consecutive stretches of one rank. Facts about the whole rank come from the last stretch."""
    last = parts[-1]
    rows = {name: tuple(chain.from_iterable(part.rows[name] for part in parts)) for name in last.rows}
    calls = sum(part.row.collectives for part in parts)
    return replace(
        last,
        row=replace(last.row, steps=len(rows["steps"]), collectives=calls),
        facts=_facts(parts, rows["collectives"]),
        rows=rows,
        rpc=_calls([part.rpc for part in parts]),
        load=HostLoad(*(_added([part.load for part in parts], field.name) for field in fields(last.load))),
        trail=_trail([part.trail for part in parts], rows["steps"][0].begin_at_ns if rows["steps"] else None),
        waited_ns=_added(parts, "waited_ns"),
    )


def _facts(parts: Sequence[RankTables], collectives: Sequence[CollectiveRow]) -> RankFacts:
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


def _calls(parts: Sequence[RankCalls]) -> RankCalls:
    rpcs = [one.rpc for one in parts]
    rpc = replace(rpcs[-1], **{name: _added(rpcs, name) for name in ("calls", "runs", "waits")})
    return RankCalls(parts[-1].rank, rpc, _added(parts, "steps"))


def _added(parts: Sequence[object], name: str) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(getattr(one, name) for one in parts))


def _trail(parts: Sequence[Trail], begin_at_ns: int | None) -> Trail:
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
