"""Which place each rank has in the merged trace: ranks of one host stand together."""

from __future__ import annotations

from collections.abc import Sequence

from ddptrace.render.trace.tracks import RankRows


def places(ranks: Sequence[RankRows]) -> dict[int, int]:
    """By rank, from 0 on: hosts in the order of their lowest rank, and the ranks of each."""
    hosts = {rows.rank: rows.row.host if rows.row else "" for rows in ranks}
    first: dict[str, int] = {}
    for rank in sorted(hosts):
        first.setdefault(hosts[rank], rank)
    return {rank: place for place, rank in enumerate(sorted(hosts, key=lambda rank: (first[hosts[rank]], rank)))}
