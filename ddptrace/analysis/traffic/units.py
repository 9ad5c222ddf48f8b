"""What each unit that is no bucket sends: its gathers, scatters, messages and exchanges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.units.digest import BESIDE
from ddptrace.ops import SENT

Key = tuple[str, str, str, str]
"""Kind, name, role and dimension."""


@dataclass(frozen=True, slots=True)
class UnitTraffic:
    """What one unit does in one role: means over the rank-steps of the ranks that have it."""

    kind: str  # what the unit groups, as in `units`
    name: str  # of the unit
    role: str  # what it does for the unit, as in `units`
    dimension: str  # of parallelism
    calls: float  # number of calls
    nbytes: int | None  # of the larger side of their tensors; None where nothing tells
    sent_nbytes: int | None  # sent by one rank; computed, as in `traffic`


def unit_traffic(
    result: Result, counted: frozenset[tuple[int, int]], counts: Callable[[int], int]
) -> tuple[UnitTraffic, ...]:
    """Return the units, the most sent first. `counted`: (rank, step) of the steps that count, empty for all."""
    of_seq = {
        (row.rank, seq): (row.kind, row.name, row.role, row.dimension)
        for row in result.units
        if row.kind not in BESIDE and (not counted or (row.rank, row.step) in counted)
        for seq in row.seqs
    }
    alike: defaultdict[Key, list[CollectiveRow]] = defaultdict(list)
    for row in result.collectives:
        key = of_seq.get((row.rank, row.seq))
        if key is not None and row.part == 0:
            alike[key].append(row)
    found = [_traffic(key, rows, counts) for key, rows in alike.items()]
    return tuple(sorted(found, key=lambda one: (-(one.sent_nbytes or 0), -(one.nbytes or 0), one.name)))


def _traffic(key: Key, rows: list[CollectiveRow], counts: Callable[[int], int]) -> UnitTraffic:
    count = sum(map(counts, {row.rank for row in rows}))
    nbytes, sent = ([of(row) for row in rows] for of in (lambda row: row.nbytes, _sent))
    return UnitTraffic(*key, len(rows) / count, _mean(nbytes, count), _mean(sent, count))


def _sent(row: CollectiveRow) -> float | None:
    factor = SENT.get(row.op)
    if factor is None or not row.group_size or row.nbytes is None:
        return None
    return row.nbytes * factor(row.group_size)


def _mean(values: list[float | None] | list[int | None], count: int) -> int | None:
    """None where nothing tells one of them."""
    known = [value for value in values if value is not None]
    return round(sum(known) / count) if len(known) == len(values) else None
