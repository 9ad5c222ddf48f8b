"""For each collective and rank: when it arrived, how long it waited for the last one, how long the transfer took; and
what that says of the collective over all its ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.clocks.aligned import Uncertainty
from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.side_by_side import Mask, SideBySide, executions_of, side_by_side
from ddptrace.analysis.tables.ranks import ArrivalRow, ClockRow, MatchRow
from ddptrace.ops import FACTORS


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
    by_start = attrgetter("first_start_at_ns", "group", "ordinal", "ranks")
    order = sorted(range(len(rows)), key=lambda position: by_start(rows[position]))
    numbers = iter(np.argsort(np.array(order, np.int64)).tolist())
    arrivals = [arrival for one in met for arrival in _arrivals(one, numbers)]
    arrivals.sort(key=attrgetter("match"))
    return tuple(replace(rows[position], match=match) for match, position in enumerate(order)), tuple(arrivals)


def _arrivals(met: SideBySide, numbers: Iterator[int]) -> Iterator[ArrivalRow]:
    """By match, then rank. `numbers`: of the matches."""
    timed, free = met.compared & met.waits & met.known, met.complete & met.waits & met.known
    shortest = np.broadcast_to(met.shortest_ns[:, None], met.length_ns.shape)
    lengths = zip(
        _or_none(met.waited_ns, met.compared),
        _or_none(met.wait_ns, timed),
        _or_none(met.transfer_ns, timed),
        _or_none(met.length_ns - shortest, free),
        _or_none(shortest, free),
        strict=True,
    )
    columns = zip(met.at.tolist(), met.arrival_at_ns.tolist(), met.by_exec.tolist(), lengths, strict=True)
    for positions, instants, by_exec, ns in columns:
        match, arrived_by = next(numbers), "exec" if by_exec else "launch"
        rows = [executions.rows[position] for executions, position in zip(met.found, positions, strict=True)]
        for row, at, *lengths_ns in zip(rows, instants, *ns, strict=True):
            yield ArrivalRow(match, row.rank, row.seq, row.step, at, arrived_by, *lengths_ns)


def _or_none(column: Ints, told: Mask) -> list[list[int | None]]:
    """Shape (m, n), by rows; None where a row is not told."""
    nothing: list[int | None] = [None] * column.shape[1]
    return [row if is_told else nothing for row, is_told in zip(column.tolist(), told.tolist(), strict=True)]


# Rows of `matches` ----------------------------------------------------------------------------------------------------


def met_rows(met: SideBySide) -> Iterator[MatchRow]:
    """The matches, on the ranks' times as they are now, and what their arrivals tell."""
    told = met.compared & met.waits
    timed = told & met.known
    arrivals = np.sort(met.arrival_at_ns, axis=1)
    transfer = np.rint(np.median(met.transfer_ns, axis=1)).astype(np.int64)
    free = np.where(met.known, met.shortest_ns, [match.transfer_ns for match in met.matches])
    speed = _busbw(met, np.where(timed, transfer, free), told)
    columns = zip(
        met.matches,
        _first_and_last(met),
        free.tolist(),
        np.array(met.matches[0].ranks)[met.last].tolist(),
        arrivals[:, -1].tolist(),
        (arrivals[:, -1] - arrivals[:, 0]).tolist(),
        (arrivals[:, -1] - arrivals[:, -2]).tolist(),
        met.uncertainty_ns.tolist(),
        told.tolist(),
        transfer.tolist(),
        met.agree.tolist(),
        timed.tolist(),
        speed,
        met.at[:, 0].tolist(),
        strict=True,
    )
    for match, bounds, free_ns, last, at, skew, blame, unsure, is_told, aligned, agrees, is_timed, busbw, k in columns:
        first = met.found[0].rows[k]
        first_start, last_start, first_end, last_end = bounds
        yield replace(
            match,
            first_start_at_ns=first_start,
            last_start_at_ns=last_start,
            first_end_at_ns=first_end,
            last_end_at_ns=last_end,
            transfer_ns=free_ns,
            last_rank=last if is_told else None,
            last_arrival_at_ns=at if is_told else None,
            skew_ns=skew if is_told else None,
            blame_ns=blame if is_told else None,
            aligned_transfer_ns=aligned if is_timed else None,
            busbw_bytes_per_s=busbw,
            agrees=agrees if is_timed else None,
            uncertainty_ns=unsure if is_told else None,
            bucket=first.bucket,
            step=first.step,
        )


def _first_and_last(met: SideBySide) -> list[list[int]]:
    """First and last start, first and last end; as they were where a rank's execution is not known."""
    begin, end = met.begin_at_ns, met.end_at_ns
    now = np.column_stack((begin.min(axis=1), begin.max(axis=1), end.min(axis=1), end.max(axis=1)))
    before = [(m.first_start_at_ns, m.last_start_at_ns, m.first_end_at_ns, m.last_end_at_ns) for m in met.matches]
    bounds: list[list[int]] = np.where(met.known[:, None], now, np.array(before, np.int64)).tolist()
    return bounds


def _busbw(met: SideBySide, transfer_ns: Ints, aligned: NDArray[np.bool_]) -> list[float | None]:
    """Of the transfer alone. None where that is too short to be told from the clocks' uncertainty, where its bytes are
    not known, and where a rank is not here: it may have come last."""
    shortest_ns = np.where(aligned, 2 * met.uncertainty_ns, 0)
    moved = [_carried_nbytes(met, k) for k in range(len(met.matches))]
    return [
        None if nbytes is None or ns <= least else nbytes * 1e9 / ns
        for nbytes, ns, least in zip(moved, transfer_ns.tolist(), shortest_ns.tolist(), strict=True)
    ]


def _carried_nbytes(met: SideBySide, k: int) -> float | None:
    """Bytes that one link carries: those that the lowest rank's own bandwidth rests on, times the op's factor."""
    match, at, ranks = met.matches[k], int(met.at[k, 0]), len(met.matches[k].ranks)
    row, factor = met.found[0].rows[at], FACTORS.get(match.op)
    if match.nbytes is None or factor is None or row.algbw_bytes_per_s is None or row.group_size != ranks:
        return None
    return factor(ranks) * round(row.algbw_bytes_per_s * int(met.found[0].length_ns[at]) / 1e9)
