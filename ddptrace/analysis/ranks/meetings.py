"""All collectives that ranks met in: those that are matched, and those that ranks are only seen to wait for, which have
no times of their own in `matches` but hold ranks up all the same, as the averaging of a loss in each step does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ddptrace.analysis.clocks.waits import Waited, waited_for
from ddptrace.analysis.matching.absent import Partial, groups_in_part
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.crossings import Crossings, crossings_of
from ddptrace.analysis.ranks.trail import can_be
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import MatchRow

Span = tuple[int, int]


class Meeting:
    """The ranks with steps that met others, `tables`, and all that these met in, `matches`, the `matched` ones first.
    Nobody waits for one that met nobody."""

    def __init__(self, ranks: Sequence[RankTables], matches: Sequence[MatchRow]) -> None:
        """`ranks`: all that are here; `matches`: of them, where they were matched."""
        lived = [table for table in ranks if len(table.trail.at_ns) and can_be(table.trail)]
        self.matches, self.matched = met_in(lived, matches), len(matches)
        numbers = {rank for row in self.matches for rank in row.ranks}
        self.tables = [table for table in lived if table.row.rank in numbers]
        self._ranks = ranks

    @cached_property
    def partial(self) -> list[Partial]:
        """Groups of which some ranks are not here."""
        return groups_in_part(self._ranks, self.tables)

    @cached_property
    def crossings(self) -> Crossings:
        """Where the trails of `tables` cross."""
        return crossings_of(self.tables, self.matches)


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
