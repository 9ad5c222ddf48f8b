"""Arrows between the ranks of one collective: from the last one to arrive to the begin of the others' transfer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from operator import attrgetter

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import ArrivalRow, MatchRow
from ddptrace.render.ranks.trace import Last, Met
from ddptrace.render.trace.tracks import RankRows

Span = tuple[int, int]


def add_meetings(result: Result, ranks: Sequence[RankRows], flows: Iterator[int]) -> None:
    """Give each rank what it needs to draw of the collectives that it met the others in. `flows` gives each arrow a
    number of its own."""
    known = {rows.rank: (rows, executions(rows)) for rows in ranks}
    for number, arrivals in itertools.groupby(result.arrivals, key=attrgetter("match")):
        match, arrows = result.matches[number], []
        for row in arrivals:
            rows, spans = known[row.rank]
            met = meeting(row, match, spans.get(row.seq), flows)
            if met is not None:
                rows.met[row.seq] = met
                arrows += [met.arrow] if met.arrow else []
        if arrows and match.last_rank is not None:
            known[match.last_rank][0].last.append(Last(match, arrows[0], len(arrows)))


def executions(rows: RankRows) -> dict[int, Span]:
    """Begin and end by seq, of those that are drawn: one that carried a bucket is drawn as that."""
    carriers = {seq for row in rows.buckets if row.exec_start_at_ns is not None for seq in row.seqs}
    found: dict[int, Span] = {}
    for row in rows.collectives:
        is_drawn = row.bucket is None or row.seq in carriers
        if is_drawn and row.exec_start_at_ns is not None and row.exec_end_at_ns is not None:
            begin, _ = found.get(row.seq, (row.exec_start_at_ns, 0))
            found[row.seq] = begin, row.exec_end_at_ns
    return found


def meeting(row: ArrivalRow, match: MatchRow, span: Span | None, flows: Iterator[int]) -> Met | None:
    """None where nothing tells when this rank's execution was, or what of it was waiting.

    An arrow needs a transfer to end at: where a peer seems to be over before the last rank came, clocks are wrong, and
    no arrow goes back in time.
    """
    wait_ns = row.free_wait_ns if row.wait_ns is None else row.wait_ns
    if span is None or wait_ns is None:
        return None
    begin, end = span
    turn = min(begin + wait_ns, end)
    waited = row.wait_ns is not None and match.last_rank not in (None, row.rank)
    arrow = next(flows) if waited and row.transfer_ns and turn < end else 0
    return Met(row, match, begin, turn, end, arrow)
