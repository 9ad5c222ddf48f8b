"""The last steps of every rank of a run that grows, as tables of them: what a screen shows.

Memory and work are bounded: of each rank `LAST_STEPS` are held, of many ranks or long steps fewer, so that all of them
together have about `MOST_ROWS` rows.
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
"""Of fewer nothing is said of how steps vary, and hardly of who is late."""
MOST_ROWS: Final = 20_000
"""Of steps, phases, buckets and collectives: about half a second of work to compare the ranks."""

Stretch = tuple[range, RankTables]


class RecentRank:
    """The last steps of one rank, without a gap: after one it begins anew."""

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
        """The newest steps."""
        since = self.steps.stop - most
        while self._stretches and self._stretches[0][0].stop <= since:
            self._stretches.popleft()
        if self._stretches and self._stretches[0][0].start < since:
            steps = range(since, self._stretches[0][0].stop)
            self._stretches[0] = steps, cut(self._stretches[0][1], steps)

    def tables(self) -> RankTables | None:
        """None without a step."""
        return joined([tables for _, tables in self._stretches]) if self._stretches else None


class Recent:
    """Of one run. Instants of all ranks count from one zero, that of the first batch."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.zero_unix_ns: int | None = None
        self._ranks: dict[int, RecentRank] = {}

    @property
    def most_steps(self) -> int:
        """So many of each rank are held."""
        per_step = sum(rank.rows_per_step for rank in self._ranks.values())
        return max(LEAST_STEPS, min(LAST_STEPS, round(MOST_ROWS / max(per_step, 1.0))))

    def add(self, batch: RankBatch) -> None:
        """Of this run."""
        if not batch.steps:
            return
        self.zero_unix_ns = batch.zero_unix_ns if self.zero_unix_ns is None else self.zero_unix_ns
        tables = _since(batch.tables, batch.zero_unix_ns - self.zero_unix_ns)
        self._ranks.setdefault(batch.identity.rank, RecentRank()).add(batch.steps, tables)
        self._ranks[batch.identity.rank].keep(LAST_STEPS)

    def tables(self) -> Iterator[RankTables]:
        """By rank, of those that have come to a step."""
        most = self.most_steps
        for _, rank in sorted(self._ranks.items()):
            rank.keep(most)
            found = rank.tables()
            if found is not None:
                yield found


def _since(tables: RankTables, later_ns: int) -> RankTables:
    """With all instants moved by so much."""
    if not later_ns:
        return tables
    rank = tables.row.rank
    moved = ClockRow(rank, rank, 0, 0, -later_ns, 0.0, 0, 0, 0, shifted=True, why="same clock")
    return aligned_tables([tables], [moved])[0]
