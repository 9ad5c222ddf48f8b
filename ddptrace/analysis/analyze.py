"""From the records of a run to its tables: rank by rank, anywhere, and then together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from ddptrace.analysis.buckets.rows import bucket_rows
from ddptrace.analysis.clocks.aligned import aligned_tables
from ddptrace.analysis.clocks.rows import clock_rows
from ddptrace.analysis.collectives.rows import collective_rows
from ddptrace.analysis.device.idle import idle_rows
from ddptrace.analysis.device.populations import device_row
from ddptrace.analysis.device.rows import launch_rows, scope_rows, stream_rows
from ddptrace.analysis.findings.findings import run_findings
from ddptrace.analysis.matching.matches import match_ranks, with_matches
from ddptrace.analysis.rank_facts import RankFacts, facts_of
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.rank_view import RankView, view_of
from ddptrace.analysis.ranks.arrivals import arrivals_of
from ddptrace.analysis.ranks.blame import blame_of
from ddptrace.analysis.ranks.critical_path import critical_path
from ddptrace.analysis.ranks.crossings import ComparedRanks
from ddptrace.analysis.ranks.trail import trail_of
from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.rows import rank_calls, rpc_pair_rows, rpc_rows
from ddptrace.analysis.steps.breakdown import partial_step_rows, shares_of, step_rows
from ddptrace.analysis.steps.contention import contention_rows
from ddptrace.analysis.steps.jitter import jitter_rows, waited_in_phases
from ddptrace.analysis.steps.phases import phase_rows
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow, GroupRow
from ddptrace.analysis.tables.device import Activity, IdleRow, LaunchRow, RankRow, ScopeRow, StreamRow
from ddptrace.analysis.tables.ranks import ArrivalRow, BlameRow, ClockRow, DesyncRow, MatchRow, PathRow, SuspectRow
from ddptrace.analysis.tables.rpc import RpcPairRow, RpcRow
from ddptrace.analysis.tables.steps import ContentionRow, JitterRow, PartialStepRow, PhaseRow, StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.tables.traffic import GradientTrafficRow, TrafficRow
from ddptrace.analysis.traffic.gradients import gradient_traffic_rows
from ddptrace.analysis.traffic.rows import traffic_rows
from ddptrace.findings import Finding
from ddptrace.load.tables import RankRun, Run


@dataclass(frozen=True, slots=True)
class RunHead:
    """What is known of a run beside its ranks."""

    schema: str
    run_id: str
    zero_unix_ns: int
    world_size: int | None  # ranks that took part, None where nobody said
    findings: tuple[Finding, ...]  # of loading
    manifest: Mapping[str, Any] = field(default_factory=dict)  # as rank 0 wrote it

    @property
    def profile_asked(self) -> bool:
        """For profiler windows, when the run was traced."""
        return bool(self.manifest.get("profile"))

    @property
    def blind_spots(self) -> tuple[str, ...]:
        told = self.manifest.get("blind_spots")
        return tuple(spot for spot in told if isinstance(spot, str)) if isinstance(told, list) else ()


def analyze_run(run: Run) -> Result:
    """Everything that can be said of a run whose ranks are all at hand."""
    head = RunHead(run.schema, run.run_id, run.zero_unix_ns, run.world_size, run.findings, run.manifest)
    return combine(head, map(analyze_rank, run.ranks))


def analyze_rank(rank: RankRun) -> RankTables:
    """Everything that one rank's records tell; rows are in time order."""
    view = view_of(rank)
    shares = shares_of(view.comms, view.windows, view.compute)
    return RankTables(
        row=_rank_row(view),
        facts=facts_of(view),
        steps=tuple(step_rows(view, shares)),
        phases=tuple(phase_rows(view.rank, view.steps, view.phases)),
        buckets=tuple(bucket_rows(view, shares)),
        collectives=tuple(collective_rows(view, shares)),
        streams=tuple(stream_rows(view)),
        launches=tuple(launch_rows(view)),
        idle=tuple(idle_rows(view)),
        scopes=tuple(scope_rows(view)),
        activity=_activity(view),
        rpc=rank_calls(view),
        traffic=tuple(traffic_rows(view)),
        gradient_traffic=tuple(gradient_traffic_rows(view)),
        partial_steps=tuple(partial_step_rows(view.rank)),
        load=rank.load,
        clock=rank.clock or rank.host,
        trail=trail_of(view),
        contention=tuple(contention_rows(view)),
        tie_ns=rank.tie_ns,
        waited_ns=waited_in_phases(view),
    )


def combine(head: RunHead, ranks: Iterable[RankTables], *, align: bool = True) -> Result:
    """The ranks together, in whatever order they come; rows are sorted by rank, then time. A run without steps, without
    communication or with one rank is no error but a finding. `align`: bring clocks that lie apart on one time line."""
    tables = sorted(ranks, key=attrgetter("row.rank"))
    matching = match_ranks([(table.facts, table.collectives, table.steps) for table in tables])
    clocks = clock_rows(tables, matching.rows, align=align)
    tables = aligned_tables(tables, clocks)
    matches, arrivals = arrivals_of(tables, matching.rows, clocks)
    met = ComparedRanks(tables, matches)
    blame = blame_of(met)
    rpcs = rpc_rows([table.rpc for table in tables])
    collectives = (row for table in tables for row in table.collectives)
    result = Result(
        schema=head.schema,
        run_id=head.run_id,
        zero_unix_ns=head.zero_unix_ns,
        world_size=head.world_size,
        ranks=Table(RankRow, [table.row for table in tables]),
        steps=Table(StepRow, [row for table in tables for row in table.steps]),
        phases=Table(PhaseRow, [row for table in tables for row in table.phases]),
        buckets=Table(BucketRow, [row for table in tables for row in table.buckets]),
        collectives=Table(CollectiveRow, list(with_matches(collectives, matches))),
        findings=Table(Finding),
        activity=tuple(table.activity for table in tables),
        streams=Table(StreamRow, [row for table in tables for row in table.streams]),
        launches=Table(LaunchRow, [row for table in tables for row in table.launches]),
        idle=Table(IdleRow, [row for table in tables for row in table.idle]),
        scopes=Table(ScopeRow, [row for table in tables for row in table.scopes]),
        matches=Table(MatchRow, matches),
        recorded=any(table.facts.recorded for table in tables),
        rpcs=Table(RpcRow, rpcs),
        rpc_pairs=Table(RpcPairRow, rpc_pair_rows(rpcs)),
        groups=Table(GroupRow, group_rows([table.facts for table in tables])),
        traffic=Table(TrafficRow, [row for table in tables for row in table.traffic]),
        gradient_traffic=Table(GradientTrafficRow, [row for table in tables for row in table.gradient_traffic]),
        partial_steps=Table(PartialStepRow, [row for table in tables for row in table.partial_steps]),
        blind_spots=head.blind_spots,
        desyncs=Table(DesyncRow, matching.desyncs),
        clocks=Table(ClockRow, clocks),
        arrivals=Table(ArrivalRow, arrivals),
        blame=Table(BlameRow, blame.rows),
        suspects=Table(SuspectRow, blame.suspects),
        critical_path=Table(PathRow, critical_path(met)),
        contention=Table(ContentionRow, [row for table in tables for row in table.contention]),
        jitter=Table(JitterRow, [row for table in tables for row in jitter_rows(table)]),
    )
    facts = [table.facts for table in tables]
    findings = run_findings(
        facts,
        result,
        loading=head.findings,
        refused=matching.refused,
        blame=blame,
        profile_asked=head.profile_asked,
    )
    return replace(result, findings=Table(Finding, findings))


def _rank_row(view: RankView) -> RankRow:
    rank, windows = view.rank, view.rank.windows
    device = device_row(rank.rank, [window.device for window in windows if window.device is not None])
    return RankRow(
        rank.rank,
        rank.host,
        rank.pid,
        rank.device,
        rank.clean,
        rank.dropped,
        steps=len(rank.steps),
        collectives=len(view.comms),
        windows=len(windows),
        file=windows[0].file if windows else None,
        gpu_events=device.gpu_events if windows else None,
        gpu_events_with_launch=device.gpu_events_with_launch if windows else None,
        all=device.all,
        with_launch=device.with_launch,
    )


def _activity(view: RankView) -> Activity:
    ranges = [(comm.seq, comm.call.exec) for comm in view.comms if comm.call is not None]
    backend = tuple((e.lane, e.name, e.begin_at_ns, e.end_at_ns, seq) for seq, e in ranges if e is not None)
    works = tuple(window.device for window in view.rank.windows if window.device is not None)
    return Activity(view.rank.rank, view.compute, backend, works)


def group_rows(ranks: Sequence[RankFacts]) -> list[GroupRow]:
    """In the order in which the ranks name them. A group whose ranks nobody knows is left out."""
    hosts = {rank.rank: rank.host for rank in ranks}
    named = dict.fromkeys((name, members) for rank in ranks for name, members in rank.groups if members)
    return [
        GroupRow(name, members, tuple(dict.fromkeys(hosts[member] for member in members if member in hosts)))
        for name, members in named
    ]
