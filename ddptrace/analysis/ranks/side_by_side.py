"""Collectives of the same ranks, side by side: who arrived when, who waited, and what the transfer took.

rank 0   launch  [=========================)        wait 16, transfer 10
rank 1                          launch  [==========)  wait 0: it came last, at T
                                        T
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.clocks.aligned import UNKNOWN, Uncertainty
from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.matching.calls import is_partial
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.ops import family_of
from ddptrace.schema import Evidence

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


def side_by_side(matches: Sequence[MatchRow], ranks: Mapping[int, Executions], uncertainty: Uncertainty) -> SideBySide:
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


Mask = NDArray[np.bool_]


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


def executions_of(rows: Sequence[CollectiveRow]) -> Executions:
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
