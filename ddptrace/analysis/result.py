"""What `ddptrace.analyze` answers with: the tables of a run, and their ways out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow, GroupRow
from ddptrace.analysis.tables.device import Activity, LaunchRow, RankRow, ScopeRow, StreamRow
from ddptrace.analysis.tables.html import findings_html, grid, paragraph, table_names
from ddptrace.analysis.tables.ranks import ArrivalRow, BlameRow, ClockRow, DesyncRow, MatchRow, PathRow, SuspectRow
from ddptrace.analysis.tables.rpc import RpcPairRow, RpcRow
from ddptrace.analysis.tables.steps import ContentionRow, JitterRow, PartialStepRow, PhaseRow, StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.tables.traffic import GradientTrafficRow, TrafficRow
from ddptrace.errors import printable
from ddptrace.load.tables import Finding


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Everything `ddptrace analyze` knows of a run."""

    schema: str
    run_id: str
    zero_unix_ns: int
    world_size: int | None
    ranks: Table[RankRow]
    steps: Table[StepRow]
    phases: Table[PhaseRow]
    buckets: Table[BucketRow]
    collectives: Table[CollectiveRow]
    findings: Table[Finding]
    activity: tuple[Activity, ...] = field(repr=False)
    streams: Table[StreamRow] = field(default_factory=lambda: Table(StreamRow))
    launches: Table[LaunchRow] = field(default_factory=lambda: Table(LaunchRow))
    scopes: Table[ScopeRow] = field(default_factory=lambda: Table(ScopeRow))
    matches: Table[MatchRow] = field(default_factory=lambda: Table(MatchRow))
    recorded: bool = True  # by ddptrace; False: read out of profiler files alone
    rpcs: Table[RpcRow] = field(default_factory=lambda: Table(RpcRow))
    rpc_pairs: Table[RpcPairRow] = field(default_factory=lambda: Table(RpcPairRow))
    groups: Table[GroupRow] = field(default_factory=lambda: Table(GroupRow))
    traffic: Table[TrafficRow] = field(default_factory=lambda: Table(TrafficRow))
    gradient_traffic: Table[GradientTrafficRow] = field(default_factory=lambda: Table(GradientTrafficRow))
    partial_steps: Table[PartialStepRow] = field(default_factory=lambda: Table(PartialStepRow))
    blind_spots: tuple[str, ...] = ()  # what no surface of ddptrace sees, as the run itself says
    desyncs: Table[DesyncRow] = field(default_factory=lambda: Table(DesyncRow))
    clocks: Table[ClockRow] = field(default_factory=lambda: Table(ClockRow))
    arrivals: Table[ArrivalRow] = field(default_factory=lambda: Table(ArrivalRow))
    blame: Table[BlameRow] = field(default_factory=lambda: Table(BlameRow))
    suspects: Table[SuspectRow] = field(default_factory=lambda: Table(SuspectRow))
    critical_path: Table[PathRow] = field(default_factory=lambda: Table(PathRow))
    contention: Table[ContentionRow] = field(default_factory=lambda: Table(ContentionRow))
    jitter: Table[JitterRow] = field(default_factory=lambda: Table(JitterRow))

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {len(getattr(self, name))}" for name in ("ranks", "steps", "buckets", "findings"))
        return f"Result of run {printable(self.run_id[:8]) or 'without id'} (rows: {rows})"

    def _repr_html_(self) -> str:
        """Show in a notebook the typical step, the findings, and which tables there are."""
        summary = summarize(self)
        parts = [(part.name, part.ns, f"{part.ratio:.1%}") for part in summary.parts]
        sections = [
            paragraph(repr(self)),
            paragraph(f"The typical step ({summary.population}):") if parts else "",
            grid(("part", "ns", "of the step"), parts) if parts else "",
            findings_html(self.findings),
            table_names({name: table for name, table in self.json_items() if isinstance(table, Table)}),
        ]
        return "".join(sections)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the documented keys of `ddptrace analyze --json`."""
        return {key: value.to_dicts() if isinstance(value, Table) else value for key, value in self.json_items()}

    def json_items(self) -> Iterator[tuple[str, Any]]:
        """Yield the same keys one by one, with tables as they are: as dicts they take several times the memory."""
        yield from {
            "schema": self.schema,
            "run_id": self.run_id,
            "zero_unix_ns": self.zero_unix_ns,
            "world_size": self.world_size,
            "recorded": self.recorded,
            "blind_spots": list(self.blind_spots),
            "summary": summarize(self).to_json_dict(),
        }.items()
        for name in (
            "ranks", "steps", "phases", "buckets", "collectives", "streams", "launches", "scopes", "matches",
            "rpcs", "rpc_pairs", "groups", "traffic", "gradient_traffic", "partial_steps",
            "desyncs", "clocks", "arrivals", "blame", "suspects", "critical_path", "contention", "jitter",
            "findings",
        ):  # fmt: skip
            yield name, getattr(self, name)
