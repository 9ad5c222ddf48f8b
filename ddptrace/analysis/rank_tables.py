"""What analysis says of one rank, before the ranks are looked at together."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.rpc.rows import RankCalls
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import Activity, IdleRow, LaunchRow, RankRow, ScopeRow, StreamRow
from ddptrace.analysis.tables.ranks import Trail
from ddptrace.analysis.tables.steps import ContentionRow, PartialStepRow, PhaseRow, StepRow
from ddptrace.analysis.tables.traffic import GradientTrafficRow, TrafficRow
from ddptrace.load.tables import HostLoad


@dataclass(frozen=True, slots=True)
class RankTables:
    """All that analysis says of one rank. It can be pickled: ranks may be analyzed in processes of their own."""

    row: RankRow
    facts: RankFacts
    steps: tuple[StepRow, ...]
    phases: tuple[PhaseRow, ...]
    buckets: tuple[BucketRow, ...]
    collectives: tuple[CollectiveRow, ...]
    streams: tuple[StreamRow, ...]
    launches: tuple[LaunchRow, ...]
    idle: tuple[IdleRow, ...]
    scopes: tuple[ScopeRow, ...]
    activity: Activity
    rpc: RankCalls
    traffic: tuple[TrafficRow, ...]
    gradient_traffic: tuple[GradientTrafficRow, ...]
    partial_steps: tuple[PartialStepRow, ...]
    load: HostLoad
    clock: str  # as in `RankRun`
    trail: Trail
    contention: tuple[ContentionRow, ...]
    waited_ns: tuple[tuple[int, ...], ...] = ()  # by step: how long the host was blocked, in each of `LOCAL_PHASES`
    tie_ns: int | None = None  # as in `RankRun`
