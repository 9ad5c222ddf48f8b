"""All collectives that ranks met in: those that are matched, and those that ranks are only seen to wait for, which have
no times of their own in `matches` but hold ranks up all the same, as the averaging of a loss in each step does."""

from __future__ import annotations

from collections.abc import Sequence

from ddptrace.analysis.across.clock_waits import Waited, waited_for
from ddptrace.analysis.across.trail import can_be
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables import CollectiveRow, MatchRow

Span = tuple[int, int]


def meeting(tables: Sequence[RankTables], matches: Sequence[MatchRow]) -> tuple[list[RankTables], tuple[MatchRow, ...]]:
    """The ranks with steps that met others, and all that these met in. Nobody waits for one that met nobody."""
    lived = [table for table in tables if len(table.trail.at_ns) and can_be(table.trail)]
    met = met_in(lived, matches)
    ranks = {rank for row in met for rank in row.ranks}
    return [table for table in lived if table.row.rank in ranks], met


def met_in(tables: Sequence[RankTables], matches: Sequence[MatchRow]) -> tuple[MatchRow, ...]:
    """`matches`, and after them the others, of which `match` is -1."""
    matched = {key for row in matches for key in zip(row.ranks, row.seqs, strict=True)}
    found = [one for one in waited_for(tables) if not matched & set(_keys(one, tables))]
    wanted = {key for one in found for key in _keys(one, tables)}
    spans = {(row.rank, row.seq): _span(row) for table in tables for row in table.collectives if row.part == 0
             and (row.rank, row.seq) in wanted}  # fmt: skip
    return (*matches, *(_row(one, tables, [spans[key] for key in _keys(one, tables)]) for one in found))


def _keys(one: Waited, tables: Sequence[RankTables]) -> list[tuple[int, int]]:
    """Rank and seq on each of its ranks."""
    return [(tables[position].row.rank, seq) for position, seq in zip(one.positions, one.seqs, strict=True)]


def _span(row: CollectiveRow) -> Span:
    """From its call until nobody waited any more."""
    return row.launch_at_ns, row.launch_at_ns if row.exec_end_at_ns is None else row.exec_end_at_ns


def _row(one: Waited, tables: Sequence[RankTables], spans: Sequence[Span]) -> MatchRow:
    begins, ends = zip(*spans, strict=True)
    ranks = tuple(tables[position].row.rank for position in one.positions)
    shortest = min(end - begin for begin, end in spans)
    return MatchRow(
        -1, one.group, one.turn, one.op, one.nbytes, ranks, one.seqs, min(begins), max(begins), min(ends), max(ends),
        shortest,
    )  # fmt: skip
