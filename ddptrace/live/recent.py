"""Tables of the last steps of every rank of a growing run, for a screen.

Memory and work are bounded: `LAST_STEPS` of each rank are held, or fewer with many ranks or long steps, so that all of
them together have about `MOST_ROWS` rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.clocks.aligned import aligned_tables
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.ranks import ClockRow
from ddptrace.live.batch import RankBatch
from ddptrace.live.cut import cut
from ddptrace.live.joined import joined

LAST_STEPS: Final = 100
LEAST_STEPS: Final = 12
"""With fewer steps, analysis says nothing about variation and little about late ranks."""
MOST_ROWS: Final = 20_000
"""Rows of steps, phases, buckets and collectives: comparing the ranks takes about half a second."""

Stretch = tuple[range, RankTables]


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
