"""The process groups of a run: which ranks are in each, and on which hosts these are."""

from __future__ import annotations

from collections.abc import Sequence

from ddptrace.analysis.findings.facts import RankFacts
from ddptrace.analysis.tables.collectives import GroupRow


def group_rows(ranks: Sequence[RankFacts]) -> list[GroupRow]:
    """In the order in which the ranks name them. A group whose ranks nobody knows is left out."""
    hosts = {rank.rank: rank.host for rank in ranks}
    named = dict.fromkeys((name, members) for rank in ranks for name, members in rank.groups if members)
    return [
        GroupRow(name, members, tuple(dict.fromkeys(hosts[member] for member in members if member in hosts)))
        for name, members in named
    ]
