"""A growing run for a screen: its newest attempt, the last steps of its ranks, and their analysis.

Memory and work are bounded: `LAST_STEPS` of each rank are held, or fewer with many ranks or long steps, so that all of
them together have about `MOST_ROWS` rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from ddptrace.analysis.analyze import RunHead, combine
from ddptrace.analysis.clocks.aligned import aligned_tables
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import ClockRow
from ddptrace.analysis.tables.table import Table
from ddptrace.findings import Finding
from ddptrace.live.batch import RankBatch, RankNow
from ddptrace.live.run_follower import RunFollower
from ddptrace.live.stretches import cut, joined
from ddptrace.record.directory import read_json
from ddptrace.schema import MANIFEST, SCHEMA_VERSION

LAST_STEPS: Final = 100
LEAST_STEPS: Final = 12
"""With fewer steps, analysis says nothing about variation and little about late ranks."""
MOST_ROWS: Final = 20_000
"""Rows of steps, phases, buckets and collectives: comparing the ranks takes about half a second."""

Stretch = tuple[range, RankTables]


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
