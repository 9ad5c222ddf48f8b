"""Pure functions from the tables of a run to the tables a person reads. No files, no pictures, no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptrace.analysis.analyze import RankTables, RunHead, analyze_rank, analyze_run, combine
    from ddptrace.analysis.summary import Summary, summarize
    from ddptrace.analysis.tables import (
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
    "BucketRow",
    "CollectiveRow",
    "GradientTrafficRow",
    "GroupRow",
    "LaunchRow",
    "MatchRow",
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
    "Table",
    "TrafficRow",
    "analyze_rank",
    "analyze_run",
    "combine",
    "summarize",
]

_HOMES = dict.fromkeys(("RankTables", "RunHead", "analyze_rank", "analyze_run", "combine"), "analyze") | dict.fromkeys(
    ("Summary", "summarize"), "summary"
)


def __getattr__(name: str) -> object:
    """A worker that only counts what a device did needs little of this room, and starts the sooner without the rest."""
    if name not in __all__:
        raise AttributeError(f"module 'ddptrace.analysis' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ddptrace.analysis.{_HOMES.get(name, 'tables')}"), name)
