"""From the records of a run to its tables: rank by rank, anywhere, and then together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from ddptrace.analysis.device.idle import long_gaps
from ddptrace.analysis.device.rows import device_row
from ddptrace.analysis.findings.findings import run_findings
from ddptrace.analysis.rank_tables import RankTables, facts_of
from ddptrace.analysis.rank_view import RankView, view_of
from ddptrace.analysis.ranks.blame import blame_of
from ddptrace.analysis.ranks.trail import trail_of
from ddptrace.analysis.result import TABLES, Result, about
from ddptrace.analysis.rpc.rows import rank_calls
from ddptrace.analysis.run_view import RunView, run_view
from ddptrace.analysis.savings import savings
from ddptrace.analysis.steps.variation import waited_in_phases
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.declare import Declaration
from ddptrace.analysis.tables.device import Activity, RankRow
from ddptrace.analysis.tables.ranks import BlameRow, SuspectRow
from ddptrace.analysis.tables.steps import SavingRow
from ddptrace.analysis.tables.table import Table
from ddptrace.findings import Finding
from ddptrace.load.tables import UNTOLD, NcclTold, RankRun, Run


@dataclass(frozen=True, slots=True)
class RunHead:
    """What is known of a run beside its ranks."""

    schema: str
    run_id: str
    zero_unix_ns: int
    world_size: int | None  # ranks that took part, None where nobody said
    findings: tuple[Finding, ...]  # of loading
    manifest: Mapping[str, Any] = field(default_factory=dict)  # as rank 0 wrote it
    nccl: NcclTold = UNTOLD

    @property
    def profile_asked(self) -> bool:
        """Whether the run was traced with profiler windows."""
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
    return tables_of(view_of(rank))


def tables_of(view: RankView) -> RankTables:
    """Make the tables of one rank that was understood."""
    return RankTables(
        row=_rank_row(view),
        facts=facts_of(view),
        rows={name: tuple(table.of_rank(view)) for name, table in TABLES.items() if table.of_rank is not None},
        activity=_activity(view),
        rpc=rank_calls(view),
        load=view.rank.load,
        clock=view.rank.clock or view.rank.host,
        trail=trail_of(view),
        waited_ns=waited_in_phases(view),
        tie_ns=view.rank.tie_ns,
        recording=view.rank.recording,
    )


def combine(head: RunHead, ranks: Iterable[RankTables], *, align: bool = True) -> Result:
    """Put the ranks together, in whatever order they come; rows are sorted by rank, then time. A run without steps,
    without communication or with one rank is no error but a finding. `align`: bring clocks that lie apart on one time
    line."""
    run = run_view(ranks, align=align, nccl=head.nccl)
    blame = blame_of(run.compared)
    facts = [table.facts for table in run.ranks]
    result = Result(
        schema=head.schema,
        run_id=head.run_id,
        zero_unix_ns=head.zero_unix_ns,
        world_size=head.world_size,
        about=about(head.manifest, facts),
        recorded=any(table.facts.recorded for table in run.ranks),
        blind_spots=head.blind_spots,
        activity=tuple(table.activity for table in run.ranks),
        recordings=tuple(table.recording for table in run.ranks if table.recording is not None),
        **{name: Table(table.row_type, tuple(_joined(name, table, run))) for name, table in TABLES.items()},
    )
    summary = summarize(result)
    if summary.typical is not None and summary.typical.window_ns:
        blame = blame.of_typical(summary.typical.window_ns)
    result = replace(result, blame=Table(BlameRow, blame.rows), suspects=Table(SuspectRow, blame.suspects))
    result = replace(result, savings=Table(SavingRow, savings(result, summary, blame, facts)))
    findings = run_findings(
        facts,
        result,
        summary,
        loading=head.findings,
        refused=run.matching.refused,
        blame=blame,
        profile_asked=head.profile_asked,
    )
    return replace(result, findings=Table(Finding, _dearest_advice_first(findings, result.savings)))


def _dearest_advice_first(findings: Iterable[Finding], savings: Iterable[SavingRow]) -> list[Finding]:
    """Put advice last; among advice, the largest saving first."""
    codes = list(dict.fromkeys(row.finding for row in savings))
    places = {code: place for place, code in enumerate(codes)}
    return sorted(findings, key=lambda one: 1 + places.get(one.code, len(places)) if one.kind.is_advice else 0)


def _joined(name: str, table: Declaration, run: RunView) -> Iterable[Any]:
    """The rows of one table, of all ranks."""
    if table.of_run is not None:
        return table.of_run(run)
    return [] if table.of_rank is None else chain.from_iterable(rank.rows[name] for rank in run.ranks)


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
    calls = tuple(window.host_calls for window in view.rank.windows if window.host_calls is not None)
    return Activity(view.rank.rank, view.compute, backend, works, long_gaps(view), calls)
