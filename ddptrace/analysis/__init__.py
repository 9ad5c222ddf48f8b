"""Pure functions from the tables of a run to the tables a person reads. No files, no pictures, no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptrace.analysis.analyze import RunHead, analyze_rank, analyze_run, combine
    from ddptrace.analysis.rank_tables import RankTables
    from ddptrace.analysis.summary import Summary, summarize
    from ddptrace.analysis.tables.ranks import (
        ArrivalRow,
        BlameRow,
        ClockRow,
        ContentionRow,
        DesyncRow,
        JitterRow,
        PathRow,
        SuspectRow,
    )
    from ddptrace.analysis.tables.result import (
        Activity,
        BucketRow,
        CollectiveRow,
        GradientTrafficRow,
        GroupRow,
        LaunchRow,
        MatchRow,
        PhaseRow,
        Population,
        RankRow,
        Result,
        RpcPairRow,
        RpcRow,
        ScopeRow,
        StepRow,
        StreamRow,
        Table,
        TrafficRow,
    )

__all__ = [
    "Activity",
    "ArrivalRow",
    "BlameRow",
    "BucketRow",
    "ClockRow",
    "CollectiveRow",
    "ContentionRow",
    "DesyncRow",
    "GradientTrafficRow",
    "GroupRow",
    "JitterRow",
    "LaunchRow",
    "MatchRow",
    "PathRow",
    "PhaseRow",
    "Population",
    "RankRow",
    "RankTables",
    "Result",
    "RpcPairRow",
    "RpcRow",
    "RunHead",
    "ScopeRow",
    "StepRow",
    "StreamRow",
    "Summary",
    "SuspectRow",
    "Table",
    "TrafficRow",
    "analyze_rank",
    "analyze_run",
    "combine",
    "summarize",
]

_HOMES = (
    dict.fromkeys(("RunHead", "analyze_rank", "analyze_run", "combine"), "analyze")
    | dict.fromkeys(("Summary", "summarize"), "summary")
    | {"RankTables": "rank_tables"}
)


def __getattr__(name: str) -> object:
    """A worker that only counts what a device did needs little of this room, and starts the sooner without the rest."""
    if name not in __all__:
        raise AttributeError(f"module 'ddptrace.analysis' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ddptrace.analysis.{_HOMES.get(name, 'tables.result')}"), name)
