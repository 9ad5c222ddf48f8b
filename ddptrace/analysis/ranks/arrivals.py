"""For each collective and rank: when it arrived, how long it waited for the last one, how long the transfer took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from ddptrace.analysis.clocks.uncertainty import Uncertainty
from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.executions import Mask, executions_of
from ddptrace.analysis.ranks.match_rows import met_rows
from ddptrace.analysis.ranks.side_by_side import SideBySide, side_by_side
from ddptrace.analysis.tables.ranks import ArrivalRow, ClockRow, MatchRow


def arrivals_of(
    tables: Sequence[RankTables], matches: Sequence[MatchRow], clocks: Sequence[ClockRow]
) -> tuple[tuple[MatchRow, ...], tuple[ArrivalRow, ...]]:
    """The matches on the tables' time, in order of first start, `match` being the position; and one row for each rank
    of each, in the same order. `tables`: by rank; `clocks`: by rank, then time.

    A rank arrives when its execution begins, if that was seen on all of the collective's ranks; else when it launches.
    """
    ranks = {table.row.rank: executions_of(table.collectives) for table in tables}
    uncertainty = Uncertainty.of(tables, clocks)
    together: dict[tuple[int, ...], list[MatchRow]] = defaultdict(list)
    for match in matches:
        together[match.ranks].append(match)
    met = [side_by_side(those, ranks, uncertainty) for those in together.values()]
    rows = [row for one in met for row in met_rows(one)]
    order = sorted(range(len(rows)), key=lambda position: _key(rows[position]))
    numbers = iter(np.argsort(np.array(order, np.int64)).tolist())
    arrivals = [arrival for one in met for arrival in _arrivals(one, numbers)]
    arrivals.sort(key=attrgetter("match"))
    return tuple(replace(rows[position], match=match) for match, position in enumerate(order)), tuple(arrivals)


def _key(match: MatchRow) -> tuple[int, str, int, tuple[int, ...]]:
    return match.first_start_at_ns, match.group, match.ordinal, match.ranks


def _arrivals(met: SideBySide, numbers: Iterator[int]) -> Iterator[ArrivalRow]:
    """By match, then rank. `numbers`: of the matches."""
    timed, free = met.compared & met.waits & met.known, met.complete & met.waits & met.known
    shortest = np.broadcast_to(met.shortest_ns[:, None], met.length_ns.shape)
    lengths = zip(
        _or_none(met.waited_ns, met.compared), _or_none(met.wait_ns, timed), _or_none(met.transfer_ns, timed),
        _or_none(met.length_ns - shortest, free), _or_none(shortest, free), strict=True,
    )  # fmt: skip
    columns = zip(met.at.tolist(), met.arrival_at_ns.tolist(), met.by_exec.tolist(), lengths, strict=True)
    for positions, instants, by_exec, ns in columns:
        match, arrived_by = next(numbers), "exec" if by_exec else "launch"
        rows = [one.rows[position] for one, position in zip(met.found, positions, strict=True)]
        for row, at, *lengths_ns in zip(rows, instants, *ns, strict=True):
            yield ArrivalRow(match, row.rank, row.seq, row.step, at, arrived_by, *lengths_ns)


def _or_none(column: Ints, told: Mask) -> list[list[int | None]]:
    """Shape (m, n), by rows; None where a row is not told."""
    nothing: list[int | None] = [None] * column.shape[1]
    return [row if is_told else nothing for row, is_told in zip(column.tolist(), told.tolist(), strict=True)]
