"""What is said of a collective over all its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.collectives.bandwidth import FACTORS
from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.ranks.side_by_side import SideBySide
from ddptrace.analysis.tables.ranks import MatchRow


def met_rows(met: SideBySide) -> Iterator[MatchRow]:
    """The matches, on the ranks' times as they are now, and what their arrivals tell."""
    told = met.compared & met.waits
    timed = told & met.known
    arrivals = np.sort(met.arrival_at_ns, axis=1)
    transfer = np.rint(np.median(met.transfer_ns, axis=1)).astype(np.int64)
    free = np.where(met.known, met.shortest_ns, [match.transfer_ns for match in met.matches])
    speed = _busbw(met, np.where(timed, transfer, free), told)
    columns = zip(
        met.matches, _bounds(met), free.tolist(), np.array(met.matches[0].ranks)[met.last].tolist(),
        arrivals[:, -1].tolist(), (arrivals[:, -1] - arrivals[:, 0]).tolist(),
        (arrivals[:, -1] - arrivals[:, -2]).tolist(), met.uncertainty_ns.tolist(), told.tolist(),
        transfer.tolist(), met.agree.tolist(), timed.tolist(), speed, met.at[:, 0].tolist(), strict=True,
    )  # fmt: skip
    for match, bounds, free_ns, last, at, skew, blame, unsure, is_told, aligned, agrees, is_timed, busbw, k in columns:
        first = met.found[0].rows[k]
        first_start, last_start, first_end, last_end = bounds
        yield replace(
            match, first_start_at_ns=first_start, last_start_at_ns=last_start, first_end_at_ns=first_end,
            last_end_at_ns=last_end, transfer_ns=free_ns,
            last_rank=last if is_told else None, last_arrival_at_ns=at if is_told else None,
            skew_ns=skew if is_told else None, blame_ns=blame if is_told else None,
            aligned_transfer_ns=aligned if is_timed else None, busbw_bytes_per_s=busbw,
            agrees=agrees if is_timed else None, uncertainty_ns=unsure if is_told else None,
            bucket=first.bucket, step=first.step,
        )  # fmt: skip


def _bounds(met: SideBySide) -> list[list[int]]:
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
    moved = [_carried(met, k) for k in range(len(met.matches))]
    return [
        None if nbytes is None or ns <= least else nbytes * 1e9 / ns
        for nbytes, ns, least in zip(moved, transfer_ns.tolist(), shortest_ns.tolist(), strict=True)
    ]


def _carried(met: SideBySide, k: int) -> float | None:
    """Bytes that one link carries: those that the lowest rank's own bandwidth rests on, times the op's factor."""
    match, at, ranks = met.matches[k], int(met.at[k, 0]), len(met.matches[k].ranks)
    row, factor = met.found[0].rows[at], FACTORS.get(match.op)
    if match.nbytes is None or factor is None or row.algbw_bytes_per_s is None or row.group_size != ranks:
        return None
    return factor(ranks) * round(row.algbw_bytes_per_s * int(met.found[0].length_ns[at]) / 1e9)
