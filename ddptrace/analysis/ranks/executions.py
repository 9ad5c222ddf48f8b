"""One rank's collectives as columns: when each was called and ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.schema import Evidence

Mask = NDArray[np.bool_]

SEEN: Final = (Evidence.DEVICE, Evidence.BACKEND)
"""Evidence that tells when an execution began; with the others that is inferred."""


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
        seq, np.array([row.launch_at_ns for row in firsts], np.int64), np.where(known, begin, 0), end, length, known,
        np.array([row.evidence in SEEN for row in firsts], np.bool_),
        np.array([row.on_device for row in firsts], np.bool_), tuple(firsts),
    )  # fmt: skip
