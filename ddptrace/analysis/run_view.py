"""Everything that the tables of all ranks are made of, each thing worked out once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from ddptrace.analysis.clocks.aligned import aligned_tables
from ddptrace.analysis.clocks.rows import clock_rows
from ddptrace.analysis.matching.matches import Matching, match_ranks, with_matches
from ddptrace.analysis.pipeline.turns import Pipelines, pipelines
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.arrivals import arrivals_of
from ddptrace.analysis.ranks.crossings import ComparedRanks
from ddptrace.analysis.rpc.rows import rpc_rows
from ddptrace.analysis.tables.collectives import CollectiveRow, GroupRow
from ddptrace.analysis.tables.ranks import ArrivalRow, ClockRow, MatchRow
from ddptrace.analysis.tables.traffic import RpcRow
from ddptrace.load.tables import UNTOLD, NcclTold


@dataclass(frozen=True, slots=True)
class RunView:
    """All ranks of a run, compared. Instants are on one time line as far as `clocks` says so."""

    ranks: tuple[RankTables, ...]  # by rank
    matching: Matching
    clocks: tuple[ClockRow, ...]
    matches: tuple[MatchRow, ...]
    arrivals: tuple[ArrivalRow, ...]
    compared: ComparedRanks
    rpcs: tuple[RpcRow, ...]
    pipelines: Pipelines
    nccl: NcclTold


def run_view(ranks: Iterable[RankTables], *, align: bool, nccl: NcclTold = UNTOLD) -> RunView:
    """Compare the ranks, in whatever order they come. `align`: bring clocks that lie apart on one time line. `nccl`:
    what NCCL itself told."""
    tables = sorted(ranks, key=attrgetter("row.rank"))
    matching = match_ranks([(table.facts, table.collectives, table.steps) for table in tables])
    clocks = clock_rows(tables, matching.rows, align=align)
    tables = aligned_tables(taken_from(tables), clocks)
    matches, arrivals = arrivals_of(tables, matching.rows, clocks)
    compared = ComparedRanks(tables, matches)
    rpcs = tuple(rpc_rows([table.rpc for table in tables]))
    return RunView(tuple(tables), matching, clocks, matches, arrivals, compared, rpcs, pipelines(tables), nccl)


def taken_from(tables: list[RankTables]) -> Iterator[RankTables]:
    """Yield the tables in order, and take each out of the list: of one moved to another time line no copy is kept."""
    tables.reverse()
    while tables:
        yield tables.pop()


def matched_collectives(run: RunView) -> Iterable[CollectiveRow]:
    """Return the collectives of all ranks, each with its row of `matches`."""
    return with_matches((row for table in run.ranks for row in table.collectives), run.matches)


def group_rows(run: RunView) -> list[GroupRow]:
    """List the process groups in the order in which the ranks name them, without those whose ranks nobody knows."""
    facts = [table.facts for table in run.ranks]
    hosts = {rank.rank: rank.host for rank in facts}
    named = dict.fromkeys((name, members) for rank in facts for name, members in rank.groups if members)
    return [
        GroupRow(name, members, tuple(dict.fromkeys(hosts[member] for member in members if member in hosts)))
        for name, members in named
    ]
