"""A growing run for a screen: its newest attempt, the last steps of its ranks, and their analysis.

Memory and work are bounded: `LAST_STEPS` of each rank are held, or fewer with many ranks or long steps, so that all of
them together have about `MOST_ROWS` rows. So steps are cut out of a rank's tables, and neighbouring stretches of steps
joined again. A collective with all its parts belongs to the step in which it began to run. So one that runs into the
next step is whole, and in one stretch only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from ddptrace.analysis.analyze import RunHead, combine
from ddptrace.analysis.clocks.aligned import aligned_tables
from ddptrace.analysis.rank_tables import RankFacts, RankTables
from ddptrace.analysis.result import TABLES, Result
from ddptrace.analysis.rpc.rows import RankCalls
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.declare import is_in
from ddptrace.analysis.tables.device import Activity
from ddptrace.analysis.tables.ranks import LOCAL_PHASES, STEP_END, WAIT, ClockRow, Trail
from ddptrace.analysis.tables.table import Table
from ddptrace.findings import Finding
from ddptrace.live.batch import RankBatch, RankNow
from ddptrace.live.run_follower import RunFollower
from ddptrace.load.tables import HostLoad
from ddptrace.record.directory import read_json
from ddptrace.schema import MANIFEST, SCHEMA_VERSION, line_words

LAST_STEPS: Final = 100
LEAST_STEPS: Final = 12
"""With fewer steps, analysis says nothing about variation and little about late ranks."""
MOST_ROWS: Final = 20_000
"""Rows of steps, phases, buckets and collectives: comparing the ranks takes about half a second."""

CUTS: Final = {name: table.cut for name, table in TABLES.items() if table.cut is not None}
TRAIL_COLUMNS: Final = ("kind", "at_ns", "seq", "step", "local_ns")
NO_INTERVALS: Final = np.empty((0, 2), np.int64)

Stretch = tuple[range, RankTables]
Row = TypeVar("Row")


class Watched:
    """The state of a run at the last look.

    `ranks`: the ranks of the newest attempt, by number; `missing`: sentences about records that were lost; `is_behind`:
    there is more to read; `is_over`: nothing more will come.

    Raises RunDirectoryError if the path is not a directory; `look` raises it for another major schema version.
    """

    def __init__(self, path: Path) -> None:
        self.ranks: tuple[RankNow, ...] = ()
        self.missing: tuple[str, ...] = ()
        self._path = path
        self._follower = RunFollower(path, newest=LAST_STEPS)
        self._recent: Recent | None = None
        self._result: Result | None = None

    @property
    def is_behind(self) -> bool:
        return self._follower.is_behind

    @property
    def is_over(self) -> bool:
        return self._follower.is_over

    @property
    def is_there(self) -> bool:
        return self._path.is_dir()

    @property
    def world_size(self) -> int | None:
        return self._follower.world_size

    @property
    def most_steps(self) -> int:
        """How many steps of each rank are analyzed."""
        return LAST_STEPS if self._recent is None else self._recent.most_steps

    def look(self) -> None:
        """Read what is new, at most one batch per rank."""
        batches = list(self._follower.look())
        newest = max(enumerate(self._follower.ranks), key=lambda one: (one[1].attempt, one[0]), default=None)
        if newest is None:
            return
        self._turn_to(newest[1].run_id)
        for batch in batches:
            if batch.identity.run_id == newest[1].run_id and batch.steps and self._recent is not None:
                self._recent.add(batch)
                self._result = None
        self._follower.newest = self.most_steps
        mine = (now for now in self._follower.now() if now.identity.run_id == newest[1].run_id)
        self.ranks = tuple(sorted(mine, key=lambda now: now.identity.rank))
        self.missing = tuple(self._lost())

    def result(self) -> Result | None:
        """Return the tables of the last steps; None before the first step. The same object while nothing is new."""
        if self._result is None and self._recent is not None and self._recent.zero_unix_ns is not None:
            self._result = self._combined(self._recent, self._recent.zero_unix_ns)
        return self._result

    def _turn_to(self, run_id: str) -> None:
        if self._recent is None or self._recent.run_id != run_id:
            self._recent, self._result = Recent(run_id), None

    def _lost(self) -> Iterator[str]:
        losses = self._follower.losses()
        for identity in (now.identity for now in self.ranks):
            lost = losses[identity.run_id, identity.rank]
            if lost.records:
                yield f"{lost.records} records of rank {identity.rank} are missing; see why with `ddptrace analyze`"
            yield from lost.damaged

    def _combined(self, recent: Recent, zero_unix_ns: int) -> Result:
        root = self._path / f"attempt-{self.ranks[0].identity.attempt}"
        manifest = read_json((root if root.is_dir() else self._path) / MANIFEST) or {}
        schema = str(manifest.get("schema", SCHEMA_VERSION))
        head = RunHead(schema, recent.run_id, zero_unix_ns, self.world_size, (), manifest)
        result = combine(head, recent.tables())
        said = [one for one in result.findings if _is_told(one, profiled=head.profile_asked)]
        return replace(result, findings=Table(Finding, said))


def _is_told(finding: Finding, *, profiled: bool) -> bool:
    """Whether a finding is true of the run, and not only of the part that was read so far."""
    kind = finding.kind
    return finding.severity not in kind.hidden_until_end and not (profiled and kind.asks_for_window)


class RecentRank:
    """The last steps of one rank without a gap: after a gap it starts again."""

    def __init__(self) -> None:
        self._stretches: deque[Stretch] = deque()

    @property
    def steps(self) -> range:
        return range(self._stretches[0][0].start, self._stretches[-1][0].stop) if self._stretches else range(0)

    @property
    def rows_per_step(self) -> float:
        every = [tables for _, tables in self._stretches]
        rows = sum(len(one.steps) + len(one.phases) + len(one.buckets) + len(one.collectives) for one in every)
        return rows / max(1, len(self.steps))

    def add(self, steps: range, tables: RankTables) -> None:
        if steps.start != self.steps.stop:
            self._stretches.clear()
        self._stretches.append((steps, cut(tables, steps)))

    def keep(self, most: int) -> None:
        """Keep only the `most` newest steps."""
        since = self.steps.stop - most
        while self._stretches and self._stretches[0][0].stop <= since:
            self._stretches.popleft()
        if self._stretches and self._stretches[0][0].start < since:
            steps = range(since, self._stretches[0][0].stop)
            self._stretches[0] = steps, cut(self._stretches[0][1], steps)

    def tables(self) -> RankTables | None:
        """Return the joined tables; None without a step."""
        return joined([tables for _, tables in self._stretches]) if self._stretches else None


class Recent:
    """The last steps of one run. Instants of all ranks count from the zero of the first batch."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.zero_unix_ns: int | None = None
        self._ranks: dict[int, RecentRank] = {}

    @property
    def most_steps(self) -> int:
        """How many steps of each rank are held."""
        per_step = sum(rank.rows_per_step for rank in self._ranks.values())
        return max(LEAST_STEPS, min(LAST_STEPS, round(MOST_ROWS / max(per_step, 1.0))))

    def add(self, batch: RankBatch) -> None:
        """Add a batch of this run."""
        if not batch.steps:
            return
        self.zero_unix_ns = batch.zero_unix_ns if self.zero_unix_ns is None else self.zero_unix_ns
        tables = _since(batch.tables, batch.zero_unix_ns - self.zero_unix_ns)
        self._ranks.setdefault(batch.identity.rank, RecentRank()).add(batch.steps, tables)
        self._ranks[batch.identity.rank].keep(LAST_STEPS)

    def tables(self) -> Iterator[RankTables]:
        """Yield the tables of each rank that has a step, by rank."""
        most = self.most_steps
        for _, rank in sorted(self._ranks.items()):
            rank.keep(most)
            found = rank.tables()
            if found is not None:
                yield found


def _since(tables: RankTables, later_ns: int) -> RankTables:
    """Move all instants by `later_ns`."""
    if not later_ns:
        return tables
    rank = tables.row.rank
    moved = ClockRow(rank, rank, 0, 0, -later_ns, 0.0, 0, 0, 0, shifted=True, why="same clock")
    return aligned_tables([tables], [moved])[0]


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
        facts=_cut_facts(tables.facts, rows["collectives"], steps),
        rows=rows,
        activity=Activity(tables.row.rank, NO_INTERVALS, ()),
        rpc=_cut_calls(tables.rpc, steps, span),
        load=_cut_load(tables.load, span),
        trail=_cut_trail(tables.trail, steps),
        waited_ns=tuple(tables.waited_ns[at] for at in chosen) if tables.waited_ns else (),
    )


def _counted_facts(facts: RankFacts, rows: Sequence[CollectiveRow]) -> RankFacts:
    """Return the facts with the counts of these collectives."""
    firsts = [row for row in rows if row.part == 0]
    unknown = [row for row in firsts if row.evidence is None]
    return replace(
        facts,
        by_evidence=dict(Counter(row.evidence for row in firsts)),
        unknown_ops=dict(Counter(row.op for row in unknown)),
        unknown_sites=dict(Counter(site for row in unknown if (site := line_words(row.site, row.through)))),
    )


def _cut_facts(facts: RankFacts, rows: Sequence[CollectiveRow], steps: range) -> RankFacts:
    waited = tuple(one for one in facts.waited if is_in(one.step, steps))
    return replace(_counted_facts(facts, rows), waited=waited)


def _cut_calls(calls: RankCalls, steps: range, span: tuple[int, int]) -> RankCalls:
    rpc = calls.rpc
    mine = [at for at, step in enumerate(calls.steps) if is_in(step, steps)]
    own = replace(
        rpc,
        calls=tuple(rpc.calls[at] for at in mine),
        runs=_within(rpc.runs, span),
        waits=_within(rpc.waits, span),
    )
    return RankCalls(calls.rank, own, tuple(calls.steps[at] for at in mine))


def _cut_load(load: HostLoad, span: tuple[int, int]) -> HostLoad:
    return HostLoad(*(_within(getattr(load, field.name), span) for field in fields(load)))


def _within(rows: Sequence[Row], span: tuple[int, int]) -> tuple[Row, ...]:
    """Return the rows that began, or were measured, in this span."""
    begin, end = span
    return tuple(row for row in rows if begin <= getattr(row, "begin_at_ns", getattr(row, "at_ns", begin)) < end)


def _cut_trail(trail: Trail, steps: range) -> Trail:
    """Cut the trail from the end of the step before these to the end of the last one."""
    ends = np.flatnonzero(trail.kind == STEP_END)
    ordinals = trail.step[ends]
    before, mine = ends[ordinals < steps.start], ends[(ordinals >= steps.start) & (ordinals < steps.stop)]
    first, stop = (int(before[-1]) + 1 if len(before) else 0), (int(mine[-1]) + 1 if len(mine) else 0)
    return replace(trail, **{name: getattr(trail, name)[first : max(first, stop)] for name in TRAIL_COLUMNS})


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
    facts = _counted_facts(every[-1], collectives)
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
        return _empty_trail(parts[-1].rank)
    if not _has_start(told[0]):
        told = [_trail_start(told[0], begin_at_ns), *told]
    columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in told]) for name in TRAIL_COLUMNS}
    return replace(told[-1], **columns)


def _has_start(trail: Trail) -> bool:
    return bool(trail.kind[0] == WAIT and trail.seq[0] < 0)


def _trail_start(trail: Trail, at_ns: int) -> Trail:
    one, nobody = np.array([at_ns], np.int64), np.array([-1], np.int64)
    return Trail(
        trail.rank, np.array([WAIT], np.int64), one, nobody, nobody, np.zeros((1, len(LOCAL_PHASES)), np.int64)
    )


def _empty_trail(rank: int) -> Trail:
    nothing = np.zeros(0, np.int64)
    return Trail(rank, nothing, nothing, nothing, nothing, np.zeros((0, len(LOCAL_PHASES)), np.int64))
