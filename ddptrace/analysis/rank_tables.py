"""What analysis says of one rank, before the ranks are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.rpc.rows import RankCalls
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import Activity, RankRow
from ddptrace.analysis.tables.experts import ExchangeRow
from ddptrace.analysis.tables.pipeline import MessageRow, PipelineRow
from ddptrace.analysis.tables.ranks import Trail
from ddptrace.analysis.tables.steps import PartialStepRow, PhaseRow, StepRow
from ddptrace.analysis.tables.traffic import TrafficRow
from ddptrace.load.tables import HostLoad, Recording


@dataclass(frozen=True, slots=True)
class RankTables:
    """All that analysis says of one rank. It can be pickled, so that each rank can be analyzed in another process."""

    row: RankRow
    facts: RankFacts
    rows: Mapping[str, tuple[Any, ...]]  # by name of the table: those that `Result` declares with `rank_table`
    activity: Activity
    rpc: RankCalls
    load: HostLoad
    clock: str  # as in `RankRun`
    trail: Trail
    waited_ns: tuple[tuple[int, ...], ...] = ()  # by step: how long the host was blocked, in each of `LOCAL_PHASES`
    tie_ns: int | None = None  # as in `RankRun`
    recording: Recording | None = None  # as in `RankRun`

    # Tables that are read before the ranks are together, with their types
    @property
    def steps(self) -> tuple[StepRow, ...]:
        return self.rows["steps"]

    @property
    def partial_steps(self) -> tuple[PartialStepRow, ...]:
        return self.rows["partial_steps"]

    @property
    def phases(self) -> tuple[PhaseRow, ...]:
        return self.rows["phases"]

    @property
    def buckets(self) -> tuple[BucketRow, ...]:
        return self.rows["buckets"]

    @property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        return self.rows["collectives"]

    @property
    def traffic(self) -> tuple[TrafficRow, ...]:
        return self.rows["traffic"]

    @property
    def exchanges(self) -> tuple[ExchangeRow, ...]:
        return self.rows["exchanges"]

    @property
    def messages(self) -> tuple[MessageRow, ...]:
        return self.rows["messages"]

    @property
    def pipeline(self) -> tuple[PipelineRow, ...]:
        return self.rows["pipeline"]
