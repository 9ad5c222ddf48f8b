"""Collectives that some rank saw end only by its own waiting. They are not matched, since when they ran is not known,
but nobody's wait ends before all have called: often they are the shortest of all, as the averaging of a loss is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddptrace.analysis.collectives.rows import HOOK_OP
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.ops import family_of
from ddptrace.schema import Evidence

Group = tuple[str, tuple[int, ...]]
ByTurn = dict[int, CollectiveRow]


@dataclass(frozen=True, slots=True)
class Waited:
    """One collective. `positions`: of its ranks among all; `seqs` on each."""

    group: str
    turn: int
    op: str
    nbytes: int | None  # None where it is not the same on all
    positions: tuple[int, ...]
    seqs: tuple[int, ...]


def waited_for(tables: Sequence[RankTables]) -> Iterator[Waited]:
    """By group and turn, as long as the ranks whose records are whole call the same."""
    groups: dict[Group, dict[int, ByTurn]] = defaultdict(dict)
    for position, table in enumerate(tables):
        ranks = dict(table.facts.groups) if _counts(table) else {}
        for name, rows in _by_group(table.collectives).items():
            if name in ranks:
                groups[name, ranks[name]][position] = rows
    for (name, _), shown in sorted(groups.items()):
        if len(shown) > 1:
            yield from _of_group(name, shown)


def _counts(table: RankTables) -> bool:
    return table.facts.recorded and not table.facts.dropped and not table.facts.kept.sampled


def _by_group(rows: Sequence[CollectiveRow]) -> dict[str, ByTurn]:
    found: dict[str, ByTurn] = defaultdict(dict)
    for row in rows:
        if row.turn is not None and row.part == 0 and row.op != HOOK_OP:
            found[row.group][row.turn] = row
    return found


def _of_group(name: str, shown: dict[int, ByTurn]) -> Iterator[Waited]:
    turns = set.intersection(*(set(rows) for rows in shown.values()))
    for turn in sorted(turns):
        rows = [mine[turn] for mine in shown.values()]
        if _differ(rows):
            return
        if family_of(rows[0].op).ends_together and _is_waited(rows):
            sizes = {row.nbytes for row in rows}
            nbytes = rows[0].nbytes if len(sizes) == 1 else None
            yield Waited(name, turn, rows[0].op, nbytes, tuple(shown), tuple(row.seq for row in rows))


def _differ(rows: Sequence[CollectiveRow]) -> bool:
    first = rows[0]
    same_nbytes = family_of(first.op).same_nbytes
    return any(row.op != first.op or (same_nbytes and row.nbytes != first.nbytes) for row in rows)


def _is_waited(rows: Sequence[CollectiveRow]) -> bool:
    known = all(row.exec_end_at_ns is not None for row in rows)
    return known and any(row.evidence is Evidence.HOST for row in rows)
