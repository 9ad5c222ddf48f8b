"""What the critical path is made of, in short, for a reader."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketKey, typical_steps
from ddptrace.analysis.tables.ranks import PathRow


@dataclass(frozen=True, slots=True)
class PathShare:
    """A part of the critical path: what one rank did, or where `rank` is None the transfers of one kind."""

    rank: int | None
    what: str  # a phase; of transfers, op
    bucket: BucketKey | None
    nbytes: int | None
    ns: int  # per step
    ratio: float


def path_shares(result: Result) -> list[PathShare]:
    """Of the typical steps, the largest first; where these are not on it, of the whole path. Ratios add up to 1."""
    steps = {row.step for row in typical_steps(result.steps)[0]}
    rows = [row for row in result.critical_path if row.step in steps]
    if not rows:
        rows = list(result.critical_path)
    parts: Counter[tuple[int | None, str, BucketKey | None, int | None]] = Counter()
    for row in rows:
        parts[_part(row, result)] += row.end_at_ns - row.begin_at_ns
    whole, count = sum(parts.values()), max(len({row.step for row in rows}), 1)
    found = [PathShare(*part, round(ns / count), ns / whole) for part, ns in parts.items()]
    return sorted(found, key=lambda one: -one.ns)


def _part(row: PathRow, result: Result) -> tuple[int | None, str, BucketKey | None, int | None]:
    if row.match is None:
        return row.rank, row.what, None, None
    match = result.matches[row.match]
    return None, match.op, match.bucket, match.nbytes
