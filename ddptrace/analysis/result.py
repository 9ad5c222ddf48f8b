"""Declares what `ddptrace.analyze` returns: every table of a run, its findings, and what the run is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, Final

from ddptrace.analysis.buckets.rows import bucket_rows
from ddptrace.analysis.collectives.nccl import nccl_rows
from ddptrace.analysis.collectives.rows import collective_rows
from ddptrace.analysis.device.copies import copy_rows
from ddptrace.analysis.device.idle import idle_rows
from ddptrace.analysis.device.kernels import kernel_rows
from ddptrace.analysis.device.rows import launch_rows, scope_rows, stream_rows
from ddptrace.analysis.pipeline.rows import message_rows, pipeline_rows
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.ranks.critical_path import critical_path
from ddptrace.analysis.rpc.rows import rpc_pair_rows
from ddptrace.analysis.run_view import group_rows, matched_collectives
from ddptrace.analysis.steps.breakdown import partial_step_rows, phase_rows, step_rows
from ddptrace.analysis.steps.variation import contention_rows, jitter_rows
from ddptrace.analysis.steps.windows import summarize_windows, window_rows
from ddptrace.analysis.summary import Summary, summarize
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow, GroupRow, NcclRow
from ddptrace.analysis.tables.declare import Declaration, declared_in, left_out, rank_table, run_table, whole_calls
from ddptrace.analysis.tables.device import (
    Activity,
    CopyRow,
    IdleRow,
    KernelRow,
    LaunchRow,
    RankRow,
    ScopeRow,
    StreamRow,
)
from ddptrace.analysis.tables.parallelism import (
    BubbleRow,
    DimensionRow,
    ExchangeRow,
    MessageRow,
    ParallelismRow,
    PipelineRow,
    UnitRow,
)
from ddptrace.analysis.tables.ranks import ArrivalRow, BlameRow, ClockRow, DesyncRow, MatchRow, PathRow, SuspectRow
from ddptrace.analysis.tables.steps import (
    ContentionRow,
    JitterRow,
    PartialStepRow,
    PhaseRow,
    SavingRow,
    StepRow,
    WindowRow,
)
from ddptrace.analysis.tables.table import Table, findings_html, grid, paragraph, table_names
from ddptrace.analysis.tables.traffic import GradientTrafficRow, RpcPairRow, RpcRow, TrafficRow
from ddptrace.analysis.traffic.gradients import gradient_traffic_rows
from ddptrace.analysis.traffic.rows import exchange_rows, traffic_rows, whole_exchanges
from ddptrace.analysis.units.dimensions import dimension_rows, parallelism_rows, split_dimensions
from ddptrace.analysis.units.rows import unit_rows
from ddptrace.errors import printable
from ddptrace.findings import Finding
from ddptrace.load.tables import Recording


@dataclass(frozen=True, slots=True)
class About:
    """What a run is called, and what it ran. Empty or None where nothing tells."""

    name: str = ""  # given by a person
    tags: tuple[str, ...] = ()  # given by a person
    notes: str = ""  # given by a person
    models: tuple[str, ...] = ()  # classes of the modules whose gradients are reduced
    gradient_nbytes: int | None = None  # bytes of their gradients, on one rank
    command: tuple[str, ...] = ()  # words of the command line of rank 0
    commit: str | None = None  # of the Git repository around the program
    scheduler: str | None = None  # what gave the job its id: slurm, pbs, lsf, torchelastic
    job_id: str | None = None  # the scheduler's id of the job
    torch: str | None = None  # version
    python: str | None = None  # version


NOT_TOLD: Final = About()


def about(manifest: Mapping[str, Any], ranks: Sequence[RankFacts]) -> About:
    """Read the manifest, which may be damaged: what has another type counts as not there."""
    versions = manifest.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    reducers = next((one.reducers for one in ranks if one.reducers), ())
    return About(
        name=_text(manifest.get("name")) or "",
        tags=tuple(_texts(manifest.get("tags"))),
        notes=_text(manifest.get("notes")) or "",
        models=tuple(dict.fromkeys(one.module for one in reducers if one.module)),
        gradient_nbytes=sum(one.nbytes for one in reducers) or None,
        command=tuple(_texts(manifest.get("command"))),
        commit=_text(manifest.get("commit")),
        scheduler=_text(manifest.get("scheduler")),
        job_id=_text(manifest.get("job_id")),
        torch=_text(versions.get("torch")),
        python=_text(versions.get("python")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: object) -> Iterator[str]:
    yield from (one for one in (value if isinstance(value, list) else ()) if isinstance(one, str))


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Hold everything that ddptrace knows of a run: its tables and findings."""

    schema: str  # schema version of the run
    run_id: str  # 128 bits in hex; empty for foreign traces
    zero_unix_ns: int  # Unix time of the run's zero, ns: instants count from here
    world_size: int | None  # ranks that took part; None where nothing tells
    about: About = NOT_TOLD  # what it is called, and what it ran
    recorded: bool = True  # by ddptrace; False: read out of profiler files alone
    blind_spots: tuple[str, ...] = ()  # what ddptrace cannot see in this run
    activity: tuple[Activity, ...] = field(default=(), repr=False)
    recordings: tuple[Recording, ...] = field(default=(), repr=False)  # by rank; empty for foreign traces

    # The tables, in the order of the JSON
    ranks: Table[RankRow] = run_table(
        RankRow, lambda run: [rank.row for rank in run.ranks], key=("rank",)
    )  # one row per rank
    steps: Table[StepRow] = rank_table(StepRow, step_rows, key=("rank", "step"))  # one row per step and rank
    phases: Table[PhaseRow] = rank_table(
        PhaseRow, phase_rows, key=("rank", "step", "begin_at_ns")
    )  # stretches of phases
    buckets: Table[BucketRow] = rank_table(
        BucketRow, bucket_rows, key=("rank", "reducer", "layout", "index", "launch_at_ns")
    )  # one row per occurrence of a gradient bucket on a rank
    collectives: Table[CollectiveRow] = rank_table(
        CollectiveRow, collective_rows, key=("rank", "seq", "part"), cut=whole_calls, joined=matched_collectives
    )  # one row per call, rank and step that it ran in
    windows: Table[WindowRow] = rank_table(
        WindowRow, window_rows, key=("rank", "window"), cut=left_out
    )  # profiler windows, whole
    streams: Table[StreamRow] = rank_table(
        StreamRow, stream_rows, key=("rank", "step", "stream")
    )  # device streams, by step
    launches: Table[LaunchRow] = rank_table(
        LaunchRow, launch_rows, key=("rank", "step")
    )  # how far the host ran ahead of the device, by step
    idle: Table[IdleRow] = rank_table(
        IdleRow, idle_rows, key=("rank", "step", "cause", "name", "operator"), cut=left_out
    )  # what held the host while the device was idle
    scopes: Table[ScopeRow] = rank_table(
        ScopeRow, scope_rows, key=("rank", "kind", "name"), cut=left_out
    )  # device time by module, annotation and operator
    kernels: Table[KernelRow] = rank_table(
        KernelRow, kernel_rows, key=("rank", "category", "name"), cut=left_out
    )  # device time by kernel and category
    copies: Table[CopyRow] = rank_table(
        CopyRow, copy_rows, key=("rank", "step", "name")
    )  # what copies and fills cost, by step
    nccl: Table[NcclRow] = run_table(
        NcclRow,
        lambda run: nccl_rows(run.nccl, chain.from_iterable(rank.collectives for rank in run.ranks)),
        key=("function", "nbytes", "algorithm", "protocol", "channels"),
    )  # how NCCL carried out collectives, as its own logs beside the run tell
    units: Table[UnitRow] = rank_table(
        UnitRow, unit_rows, key=("rank", "seq")
    )  # one row per communication of a unit: bucket, FSDP unit, tensor-parallel module, pipeline stage, experts
    dimensions: Table[DimensionRow] = rank_table(
        DimensionRow, dimension_rows, key=("rank", "step", "dimension", "mesh"), joined=split_dimensions
    )  # what communication along each dimension of parallelism costs each step
    parallelism: Table[ParallelismRow] = run_table(
        ParallelismRow, lambda run: parallelism_rows(run.ranks), key=("kind",)
    )  # how the ranks share the work of the model
    matches: Table[MatchRow] = run_table(
        MatchRow, lambda run: run.matches, key=("match",)
    )  # the same collective on all ranks
    rpcs: Table[RpcRow] = run_table(
        RpcRow, lambda run: run.rpcs, key=("id", "callee_rank", "run_start_at_ns")
    )  # remote calls
    rpc_pairs: Table[RpcPairRow] = run_table(
        RpcPairRow, lambda run: rpc_pair_rows(run.rpcs), key=("caller", "callee", "op", "internal")
    )  # remote calls by pair of workers
    groups: Table[GroupRow] = run_table(GroupRow, group_rows, key=("group", "ranks"))  # process groups
    traffic: Table[TrafficRow] = rank_table(
        TrafficRow, traffic_rows, key=("rank", "step", "op", "group", "group_size", "origin", "dtype", "peer")
    )  # bytes by kind of collective, step and rank
    gradient_traffic: Table[GradientTrafficRow] = rank_table(
        GradientTrafficRow, gradient_traffic_rows, key=("rank", "step", "reducer")
    )  # bytes of gradients by reducer, step and rank
    messages: Table[MessageRow] = rank_table(
        MessageRow, message_rows, key=("rank", "seq"), joined=lambda run: run.pipelines.messages
    )  # sends and receives, each with the call that it met
    pipeline: Table[PipelineRow] = rank_table(
        PipelineRow,
        pipeline_rows,
        key=("rank", "pipeline", "turn", "stage", "microbatch", "work"),
        joined=lambda run: run.pipelines.computations,
    )  # what each stage of a pipeline computed of each microbatch
    bubbles: Table[BubbleRow] = run_table(
        BubbleRow, lambda run: run.pipelines.bubbles, key=("rank", "pipeline", "turn")
    )  # where the time of each rank went in each turn of a pipeline
    exchanges: Table[ExchangeRow] = rank_table(
        ExchangeRow, exchange_rows, key=("rank", "seq"), joined=lambda run: whole_exchanges(run.ranks)
    )  # what each all-to-all sends to whom
    partial_steps: Table[PartialStepRow] = rank_table(
        PartialStepRow, partial_step_rows, key=("rank", "step")
    )  # steps of which only the length is known
    desyncs: Table[DesyncRow] = run_table(
        DesyncRow, lambda run: run.matching.desyncs, key=("group", "turn", "rank", "kind")
    )  # where a rank's calls part from the other ranks'
    clocks: Table[ClockRow] = run_table(
        ClockRow, lambda run: run.clocks, key=("rank", "begin_at_ns")
    )  # how far each rank's clock is from the reference rank's
    arrivals: Table[ArrivalRow] = run_table(
        ArrivalRow, lambda run: run.arrivals, key=("match", "rank")
    )  # waiting and transfer of each rank in each matched collective
    blame: Table[BlameRow] = run_table(
        BlameRow, key=("rank", "step", "phase")
    )  # what each rank's phases cost each step
    suspects: Table[SuspectRow] = run_table(
        SuspectRow, key=("rank", "phase")
    )  # ranks that make the others wait, and why
    critical_path: Table[PathRow] = run_table(
        PathRow, lambda run: critical_path(run.compared), key=("begin_at_ns",)
    )  # what the run waited for
    contention: Table[ContentionRow] = rank_table(
        ContentionRow, contention_rows, key=("rank", "name"), cut=left_out
    )  # operators that take longer beside communication
    jitter: Table[JitterRow] = run_table(
        JitterRow, lambda run: chain.from_iterable(map(jitter_rows, run.ranks)), key=("rank", "part")
    )  # how the parts of each rank's steps vary
    savings: Table[SavingRow] = run_table(SavingRow)  # what could be won back, the largest first: the headline
    findings: Table[Finding] = run_table(Finding)  # what the numbers mean and what spoils them, in sentences

    @property
    def summary(self) -> Summary:
        """The typical step, how it divides, its buckets and its ranks; made anew at each use."""
        return replace(summarize(self), window=summarize_windows(self))

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {len(getattr(self, name))}" for name in ("ranks", "steps", "buckets", "findings"))
        return f"Result of run {printable(self.run_id[:8]) or 'without id'} (rows: {rows})"

    def _repr_html_(self) -> str:
        """Show in a notebook the typical step, the findings, and which tables there are."""
        summary = self.summary
        parts = [(part.name, part.ns, f"{part.ratio:.1%}") for part in summary.parts]
        sections = [
            paragraph(repr(self)),
            paragraph(f"The typical step, by {summary.population}:") if parts else "",
            grid(("part", "ns", "of the step"), parts) if parts else "",
            findings_html(self.findings),
            table_names({name: getattr(self, name) for name in TABLES}),
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
            "about": asdict(self.about),
            "recorded": self.recorded,
            "blind_spots": list(self.blind_spots),
            "summary": self.summary.to_json_dict(),
        }.items()
        for name in TABLES:
            yield name, getattr(self, name)


TABLES: Final[dict[str, Declaration]] = declared_in(Result)
"""All tables of a run by name, in the order of the JSON. `combine` fills `blame` and all that says what to do."""
