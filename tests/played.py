"""A recorded run, told to the metrics bit by bit as if it were going, so that what a server must answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.telemetry.delivery.exports import totals_of
from ddptrace.telemetry.metrics.totals import Totals
from ddptrace.telemetry.rows import of_result

NS = 1e9


@dataclass(frozen=True, slots=True)
class Played:
    """`result`: what `ddptrace.analyze` says of the run."""

    result: Result
    path: Path

    @classmethod
    def of(cls, path: Path) -> Played:
        return cls(ddptrace.analyze(path), path)

    def identify(self, totals: Totals) -> None:
        """Whose ranks these are, as what follows a run says it."""
        for one in totals_of(self.result, self.path).snapshot():
            totals.of_rank(one.identity)

    def tell(self, totals: Totals, steps: range) -> None:
        """These steps of all ranks."""
        for rows in of_result(self.result):
            totals.add(rows, steps=steps, strays=False)

    def beat(self, totals: Totals, unix_ns: int) -> None:
        """The newest record of every rank."""
        for row in self.result.ranks:
            totals.seen(self.result.run_id, row.rank, unix_ns)


@dataclass(frozen=True, slots=True)
class Truth:
    """What the tables say of some steps: sums over rows, by hand."""

    result: Result
    steps: range

    def rows(self, table: str, **where: Any) -> Sequence[Any]:
        return [
            row for row in getattr(self.result, table)
            if row.step in self.steps and all(getattr(row, name) == value for name, value in where.items())
        ]  # fmt: skip

    def total(self, table: str, column: str, **where: Any) -> int:
        return sum(getattr(row, column) or 0 for row in self.rows(table, **where))

    def count(self, **where: Any) -> int:
        return len(self.rows("steps", **where))

    def per_step_s(self, column: str, **where: Any) -> float:
        return self.total("steps", column, **where) / self.count(**where) / NS

    def share(self, above: str, below: str, **where: Any) -> float:
        return self.total("steps", above, **where) / self.total("steps", below, **where)

    def bucket(self, column: str, index: int) -> int:
        return self.total("buckets", column, index=index)
