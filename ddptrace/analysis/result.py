"""What `ddptrace.analyze` answers with: the tables of a run, and their ways out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow, GroupRow
from ddptrace.analysis.tables.device import Activity, IdleRow, LaunchRow, RankRow, ScopeRow, StreamRow
from ddptrace.analysis.tables.html import findings_html, grid, paragraph, table_names
from ddptrace.analysis.tables.ranks import ArrivalRow, BlameRow, ClockRow, DesyncRow, MatchRow, PathRow, SuspectRow
from ddptrace.analysis.tables.rpc import RpcPairRow, RpcRow
from ddptrace.analysis.tables.steps import ContentionRow, JitterRow, PartialStepRow, PhaseRow, StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.tables.traffic import GradientTrafficRow, TrafficRow
from ddptrace.errors import printable
from ddptrace.findings import Finding


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Hold everything that ddptrace knows of a run: its tables and findings."""

    schema: str  # schema version of the run
    run_id: str  # 128 bits in hex; empty for foreign traces
    zero_unix_ns: int  # Unix time of the run's zero, ns: instants count from here
    world_size: int | None  # ranks that took part; None where nothing tells
    ranks: Table[RankRow]  # one row per rank
    steps: Table[StepRow]  # one row per step and rank
    phases: Table[PhaseRow]  # stretches of phases
    buckets: Table[BucketRow]  # one row per occurrence of a gradient bucket on a rank
    collectives: Table[CollectiveRow]  # one row per call, rank and step that it ran in
    findings: Table[Finding]  # what the numbers mean and what spoils them, in sentences
    activity: tuple[Activity, ...] = field(repr=False)
    streams: Table[StreamRow] = field(default_factory=lambda: Table(StreamRow))  # device streams, by step
    launches: Table[LaunchRow] = field(default_factory=lambda: Table(LaunchRow))  # how far the host ran ahead of the
    #   device, by step
    idle: Table[IdleRow] = field(default_factory=lambda: Table(IdleRow))  # what held the host while the device was idle
    scopes: Table[ScopeRow] = field(default_factory=lambda: Table(ScopeRow))  # device time by module, annotation and
    #   operator
    matches: Table[MatchRow] = field(default_factory=lambda: Table(MatchRow))  # the same collective on all ranks
    recorded: bool = True  # by ddptrace; False: read out of profiler files alone
    rpcs: Table[RpcRow] = field(default_factory=lambda: Table(RpcRow))  # remote calls
    rpc_pairs: Table[RpcPairRow] = field(default_factory=lambda: Table(RpcPairRow))  # remote calls by pair of workers
    groups: Table[GroupRow] = field(default_factory=lambda: Table(GroupRow))  # process groups
    traffic: Table[TrafficRow] = field(default_factory=lambda: Table(TrafficRow))  # bytes by kind of collective, step
    #   and rank
    gradient_traffic: Table[GradientTrafficRow] = field(default_factory=lambda: Table(GradientTrafficRow))  # bytes of
    #   gradients by reducer, step and rank
    partial_steps: Table[PartialStepRow] = field(default_factory=lambda: Table(PartialStepRow))  # steps of which only
    #   the length is known
    blind_spots: tuple[str, ...] = ()  # what ddptrace cannot see in this run
    desyncs: Table[DesyncRow] = field(default_factory=lambda: Table(DesyncRow))  # where a rank's calls part from the
    #   other ranks'
    clocks: Table[ClockRow] = field(default_factory=lambda: Table(ClockRow))  # how far each rank's clock is from the
    #   reference rank's
    arrivals: Table[ArrivalRow] = field(default_factory=lambda: Table(ArrivalRow))  # waiting and transfer of each rank
    #   in each matched collective
    blame: Table[BlameRow] = field(default_factory=lambda: Table(BlameRow))  # what each rank's phases cost each step
    suspects: Table[SuspectRow] = field(default_factory=lambda: Table(SuspectRow))  # ranks that make the others wait,
    #   and why
    critical_path: Table[PathRow] = field(default_factory=lambda: Table(PathRow))  # what the run waited for
    contention: Table[ContentionRow] = field(default_factory=lambda: Table(ContentionRow))  # operators that take longer
    #   beside communication
    jitter: Table[JitterRow] = field(default_factory=lambda: Table(JitterRow))  # how the parts of each rank's steps
    #   vary

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
        """Yield the same keys one by one, tables as they are: as dicts they would take several times the memory."""
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
            "ranks",
            "steps",
            "phases",
            "buckets",
            "collectives",
            "streams",
            "launches",
            "idle",
            "scopes",
            "matches",
            "rpcs",
            "rpc_pairs",
            "groups",
            "traffic",
            "gradient_traffic",
            "partial_steps",
            "desyncs",
            "clocks",
            "arrivals",
            "blame",
            "suspects",
            "critical_path",
            "contention",
            "jitter",
            "findings",
        ):
            yield name, getattr(self, name)
