"""Tells for each collective when each rank arrived, how long it waited, and how long the transfer took.

rank 0   launch  [=========================)        wait 16, transfer 10
rank 1                          launch  [==========)  wait 0: it came last, at T
                                        T
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.clocks.aligned import UNKNOWN, Uncertainty
from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.matching.calls import is_partial
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import ArrivalRow, ClockRow, MatchRow
from ddptrace.ops import FACTORS, family_of
from ddptrace.rows import replaced
from ddptrace.schema import Evidence

Mask = NDArray[np.bool_]


def arrivals_of(
    tables: Sequence[RankTables], matches: Sequence[MatchRow], clocks: Sequence[ClockRow]
) -> tuple[tuple[MatchRow, ...], tuple[ArrivalRow, ...]]:
    """The matches on the tables' time, in order of first start, `match` being the position; and one row for each rank
    of each, in the same order. `tables`: by rank; `clocks`: by rank, then time.

    A rank arrives when its execution begins, if that was seen on all of the collective's ranks; else when it launches.
    """
    ranks = {table.row.rank: _executions_of(table.collectives) for table in tables}
    uncertainty = Uncertainty.of(tables, clocks)
    together: dict[tuple[int, ...], list[MatchRow]] = defaultdict(list)
    for match in matches:
        together[match.ranks].append(match)
    met = [_side_by_side(those, ranks, uncertainty) for those in together.values()]
    rows = [row for one in met for row in _match_rows(one)]
    by_start = attrgetter("first_start_at_ns", "group", "ordinal", "ranks")
    order = sorted(range(len(rows)), key=lambda position: by_start(rows[position]))
    numbers = iter(np.argsort(np.array(order, np.int64)).tolist())
    arrivals = [arrival for one in met for arrival in _arrivals(one, numbers)]
    arrivals.sort(key=attrgetter("match"))
    return tuple(replaced(rows[position], match=match) for match, position in enumerate(order)), tuple(arrivals)


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


def _match_rows(met: SideBySide) -> Iterator[MatchRow]:
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
        yield replaced(
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


# Collectives of the same ranks, side by side --------------------------------------------------------------------------


AGREEMENT_RATIO: Final = 0.1
"""So far apart, of the shorter one, both estimates of a transfer may be."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """m collectives of n ranks; columns of shape (m, n) or (m,). A column holds anything where its mask is false."""

    matches: tuple[MatchRow, ...]
    found: tuple[Executions, ...]  # by rank
    at: Ints  # (m, n): position in `found`
    begin_at_ns: Ints  # (m, n)
    end_at_ns: Ints  # (m, n)
    known: Mask  # (m,): all executions
    arrival_at_ns: Ints  # (m, n)
    by_exec: Mask  # (m,): arrivals are begins of executions, else launches
    complete: Mask  # (m,): all ranks of the group are here, as far as is known
    compared: Mask  # (m,): so are their arrivals; those of different clocks may not be comparable
    waits: Mask  # (m,): no rank can end before all have arrived, so that there is something to wait for
    uncertainty_ns: Ints  # (m,): of arrivals against each other, `UNKNOWN` where not compared
    waited_ns: Ints  # (m, n)
    wait_ns: Ints  # (m, n): the rest of `length_ns` is the transfer
    length_ns: Ints  # (m, n)

    @property
    def transfer_ns(self) -> Ints:
        """Shape (m, n)."""
        return self.length_ns - self.wait_ns

    @property
    def shortest_ns(self) -> Ints:
        """Shape (m,)."""
        shortest: Ints = self.length_ns.min(axis=1)
        return shortest

    @property
    def last(self) -> Ints:
        """Shape (m,): the last to arrive, the lowest of several."""
        last: Ints = self.arrival_at_ns.argmax(axis=1)
        return last

    @property
    def agree(self) -> Mask:
        """Shape (m,)."""
        aligned, free = np.take_along_axis(self.transfer_ns, self.last[:, None], axis=1)[:, 0], self.shortest_ns
        agree: Mask = np.abs(aligned - free) <= np.maximum(2 * self.uncertainty_ns, AGREEMENT_RATIO * free)
        return agree


def _side_by_side(matches: Sequence[MatchRow], ranks: Mapping[int, Executions], uncertainty: Uncertainty) -> SideBySide:
    """`matches`: one at least, all of the same ranks."""
    found = tuple(ranks[rank] for rank in matches[0].ranks)
    seqs = zip(*(match.seqs for match in matches), strict=True)
    at = np.column_stack([executions.at(own) for executions, own in zip(found, seqs, strict=True)])

    def column(name: str) -> Ints:
        own = zip(found, at.T, strict=True)
        return np.column_stack([getattr(executions, name)[positions] for executions, positions in own])

    begin, length = column("begin_at_ns"), column("length_ns")
    by_exec, known = (np.asarray(column(name).all(axis=1), np.bool_) for name in ("seen", "known"))
    on_device = np.asarray(column("on_device").any(axis=1), np.bool_)
    arrival = np.where(by_exec[:, None], begin, column("launch_at_ns"))
    last_at = arrival.max(axis=1)
    unsure = uncertainty.between(matches[0].ranks, last_at)
    complete = np.array([not is_partial(found[0].rows[k], len(found)) for k in at[:, 0].tolist()], np.bool_)
    compared = complete & (unsure != UNKNOWN) & (by_exec | ~on_device)
    return SideBySide(
        tuple(matches),
        found,
        at,
        begin,
        column("end_at_ns"),
        known,
        arrival,
        by_exec,
        complete,
        compared,
        waits=np.array([family_of(match.op).ends_together for match in matches], np.bool_),
        uncertainty_ns=unsure,
        waited_ns=last_at[:, None] - arrival,
        wait_ns=np.clip(last_at[:, None] - begin, 0, length),
        length_ns=length,
    )


# One rank's collectives as columns ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Executions:
    """Shape (n,), by seq. Begin, end and length are 0 where `known` is false."""

    seq: Ints
    launch_at_ns: Ints
    begin_at_ns: Ints
    end_at_ns: Ints
    length_ns: Ints  # by the rank's own clock
    known: Mask  # what the host saw alone does not tell when one ran
    seen: Mask  # its begin, not only its end
    on_device: Mask
    rows: tuple[CollectiveRow, ...]  # part 0 of each

    def at(self, seqs: Sequence[int]) -> Ints:
        """Positions of collectives of the rank."""
        return np.searchsorted(self.seq, np.array(seqs, np.int64))


def _executions_of(rows: Sequence[CollectiveRow]) -> Executions:
    """`rows`: of one rank. One in several parts ran from the begin of the first to the end of the last."""
    firsts = sorted((row for row in rows if row.part == 0), key=lambda row: row.seq)
    seq = np.array([row.seq for row in firsts], np.int64)
    told = [row for row in rows if row.exec_end_at_ns is not None and row.evidence is not Evidence.HOST]
    of = np.searchsorted(seq, np.array([row.seq for row in told], np.int64))
    length, end = np.zeros(len(seq), np.int64), np.zeros(len(seq), np.int64)
    np.add.at(length, of, np.array([row.comm_ns for row in told], np.int64))
    end[of] = np.array([row.exec_end_at_ns for row in told], np.int64)  # rows are in order of parts: the last one stays
    known = np.isin(np.arange(len(seq)), of)
    begin = np.array([row.exec_start_at_ns or 0 for row in firsts], np.int64)
    return Executions(
        seq,
        np.array([row.launch_at_ns for row in firsts], np.int64),
        np.where(known, begin, 0),
        end,
        length,
        known,
        np.array([row.tells_arrival for row in firsts], np.bool_),
        np.array([row.on_device for row in firsts], np.bool_),
        tuple(firsts),
    )
