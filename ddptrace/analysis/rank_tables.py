"""Holds what analysis makes of a `RankView`, the result of `rank_view.py`: the rows of one rank, and its facts for
findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from statistics import median
from typing import Any, Final

import numpy as np

from ddptrace.analysis.buckets.layouts import ReducerFacts, reducer_facts
from ddptrace.analysis.collectives.execution import is_inferred
from ddptrace.analysis.collectives.rows import HOOK_OP, BufferTime, buffer_times
from ddptrace.analysis.device.comm_like import CommLike, comm_like
from ddptrace.analysis.device.steps import CaughtUp, caught_up
from ddptrace.analysis.intervals import subtract, total, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.rpc.rows import RankCalls, Waited, waited_for
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import Activity, RankRow
from ddptrace.analysis.tables.parallelism import ExchangeRow, MessageRow, PipelineRow, UnitRow
from ddptrace.analysis.tables.ranks import Trail
from ddptrace.analysis.tables.steps import PartialStepRow, PhaseRow, StepRow
from ddptrace.analysis.tables.traffic import TrafficRow
from ddptrace.load.tables import Call, HostLoad, RankRun, Recording, StepMark, Unit
from ddptrace.ops import RECEIVE, family_of
from ddptrace.schema import Evidence, Origin, line_words


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
    def units(self) -> tuple[UnitRow, ...]:
        return self.rows["units"]

    @property
    def messages(self) -> tuple[MessageRow, ...]:
        return self.rows["messages"]

    @property
    def pipeline(self) -> tuple[PipelineRow, ...]:
        return self.rows["pipeline"]


# Facts that findings need ---------------------------------------------------------------------------------------------


PREPARATION: Final = (Origin.CONSTRUCTION.word, Origin.REBUILD.word)
MOST_IN_A_ROW: Final = 6
"""So many steps, on average, one optimizer may make before it is another's turn. After more, they are parts of the
training, one after another, and no iteration has updates of both."""


@dataclass(frozen=True, slots=True)
class KeptFacts:
    """What is left of a rank's steps. Of a foreign run, and of one of which all was kept, all is `whole`."""

    let_go: int = 0  # records
    sampled: bool = False  # some steps were not recorded
    whole: int = 0  # steps
    partial: int = 0
    since: int | None = None  # the first of the newest steps of which none is gone
    last_step: int | None = None  # whole or not
    whole_ns: int | None = None  # median length
    partial_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A collective that failed."""

    op: str
    group: str
    ordinal: int
    error: str
    step: int | None  # None outside every whole step
    after: int | None  # the last step that was over by then


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank in short. Counts are of communications."""

    rank: int
    host: str
    pid: int
    clean: bool
    recorded: bool  # by ddptrace; False: read out of somebody's profiler files
    dropped: int  # records lost
    last_step: int | None  # None without steps
    ended_by: tuple[str, ...]  # what ended its steps, each kind once
    by_evidence: Mapping[Evidence | None, int]
    unknown_ops: Mapping[
        str, int
    ]  # ops of those of which nothing tells when they ran, first seen first: see `_is_preparation`
    unmatched: int  # (reducer, backward) pairs that fit no known bucket layout
    hooks: tuple[str, ...]
    reducers: tuple[ReducerFacts, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]  # name and ranks of each process group
    outside_ns: int  # device work outside all steps' windows; 0 without steps
    unknown_sites: Mapping[str, int] = field(default_factory=dict)  # where the program issued those, as far as known
    failures: tuple[Failure, ...] = ()  # of collectives, in the order in which they ended
    remote_calls: int = 0  # that its program made
    only_remote: bool = False  # all that it does is to call others and to run functions for them
    unmarked: bool = False  # no forward, backward or update of it was seen
    windows: int = 0
    outside_windows: int = 0  # communications that no profiler saw run, launched outside of all its windows
    kept: KeptFacts = KeptFacts()
    waited: tuple[Waited, ...] = ()  # for remote calls while nothing else ran, by what for
    in_turn: tuple[str, ...] = ()  # optimizers that end its steps in turn
    backends: tuple[str, ...] = ()  # of its process groups, each once
    queues: Mapping[str, int] = field(default_factory=dict)  # worker threads of its groups, where a backend has some
    searched_ns: tuple[int, ...] = ()  # in its profiler windows, as in `Window`
    buffers: tuple[BufferTime, ...] = ()  # what DDP's broadcasts of buffers cost it, by step
    on_device: bool = False  # it computes there
    device_windows: int = 0  # of `windows`, those that saw the device
    serves: str = ""  # as in `RankRun`
    inferred_events: int = 0  # of its communications with evidence `event`, those whose begin was inferred
    caught_up: CaughtUp | None = None  # None where no device was timed by events
    device_ranks: tuple[int, ...] = ()  # as in `RankRun`
    untimed: tuple[int, ...] = ()  # ordinals of steps of which some events were not recorded
    comm_like: tuple[CommLike, ...] = ()  # kernels that count as compute and may communicate
    units: tuple[Unit, ...] = ()  # that it described
    receives_from_any: bool = False  # it has received without saying from whom
    unrecorded: tuple[int, ...] = ()  # ordinals of steps of which collectives may be missing, and no device tells

    @property
    def comms(self) -> int:
        return sum(self.by_evidence.values())


def facts_of(view: RankView) -> RankFacts:
    rank = view.rank
    unknown = [comm.call for comm in view.comms if comm.evidence is None and not _is_preparation(comm.call)]
    return RankFacts(
        rank.rank,
        rank.host,
        rank.pid,
        rank.clean,
        rank.recorded,
        rank.dropped,
        last_step=max((mark.ordinal for mark in (*rank.steps, *rank.partial_steps)), default=None),
        ended_by=tuple(sorted({mark.ended_by.name.lower() for mark in rank.steps})),
        by_evidence=dict(Counter(comm.evidence for comm in view.comms)),
        unknown_ops=dict(Counter(call.op if call else HOOK_OP for call in unknown)),
        unknown_sites=dict(Counter(site for call in unknown if call and (site := line_words(call.site, call.through)))),
        unmatched=len(view.unmatched),
        hooks=tuple(sorted({hook.name for hook in rank.hooks})),
        reducers=tuple(reducer_facts(reducer, rank) for reducer in rank.reducers),
        groups=tuple((group.name, group.ranks) for group in rank.groups),
        outside_ns=_outside_ns(view),
        failures=tuple(_failures(view)),
        remote_calls=sum(not call.is_internal for call in rank.rpc.calls),
        only_remote=view.only_remote,
        unmarked=not rank.phases,
        windows=len(rank.windows),
        outside_windows=_outside_windows(view),
        kept=_kept_facts(rank),
        waited=waited_for(view),
        in_turn=optimizers_in_turn((*rank.steps, *rank.partial_steps)),
        backends=tuple(sorted({group.backend for group in rank.groups if group.backend})),
        queues={group.name: group.threads for group in rank.groups if group.threads},
        searched_ns=tuple(ns for window in rank.windows for ns in window.searched_ns),
        buffers=buffer_times(view),
        on_device=view.is_on_device,
        device_windows=sum(window.on_device for window in rank.windows),
        serves=rank.serves,
        inferred_events=sum(comm.evidence is Evidence.EVENT and is_inferred(comm) for comm in view.comms),
        caught_up=caught_up(rank.device_events),
        device_ranks=rank.device_ranks,
        untimed=tuple(view.ordinals(view.events.untimed & ~view.profiled)),
        comm_like=comm_like(view),
        units=rank.units,
        unrecorded=tuple(view.ordinals(view.unrecorded & ~(view.profiled & view.is_on_device))),
        receives_from_any=any(call.peer is None and family_of(call.op) is RECEIVE for call in rank.calls),
    )


def _is_preparation(call: Call | None) -> bool:
    """What DDP sends once, before and between its buckets: nobody could do anything about it."""
    return call is not None and call.origin in PREPARATION


def _kept_facts(rank: RankRun) -> KeptFacts:
    known = {mark.ordinal for mark in (*rank.steps, *rank.partial_steps)}
    whole = [mark.ordinal for mark in rank.steps]
    since = last = max(known, default=None)
    while since is not None and since - 1 in known:
        since -= 1
    whole_ns, partial_ns = (_median_ns(marks) for marks in (rank.steps, rank.partial_steps))
    return KeptFacts(
        rank.let_go,
        rank.sampled,
        len(whole),
        len(rank.partial_steps),
        min((one for one in whole if since is not None and one >= since), default=None),
        last,
        whole_ns,
        partial_ns,
    )


def _median_ns(marks: Sequence[StepMark]) -> int | None:
    return round(median(mark.end_at_ns - mark.begin_at_ns for mark in marks)) if marks else None


def _failures(view: RankView) -> Iterator[Failure]:
    failed = [call for call in view.rank.calls if call.error is not None]
    failed.sort(key=lambda call: (call.done_at_ns or 0, call.seq))
    launches = np.array([call.launch_at_ns for call in failed], np.int64)
    inside, over = view.steps.at(launches), np.searchsorted(view.steps.ends, launches, side="right") - 1
    for call, step, after in zip(failed, inside.tolist(), over.tolist(), strict=True):
        yield Failure(call.op, call.group, call.ordinal, call.error or "", view.ordinal(step), view.ordinal(after))


def _outside_windows(view: RankView) -> int:
    spans = [(window.begin_at_ns, window.end_at_ns) for window in view.rank.windows]
    launches = (c.launch_at_ns for c in view.comms if c.evidence not in (Evidence.DEVICE, Evidence.BACKEND))
    return sum(not any(begin <= at < end for begin, end in spans) for at in launches)


def _outside_ns(view: RankView) -> int:
    works = [window.work for window in view.device.profiled]
    busy = union(*(np.column_stack((work.begin_at_ns, work.end_at_ns)) for work in works))
    return total(subtract(busy, union(view.windows.spans()))) if view.rank.steps else 0


def optimizers_in_turn(steps: Iterable[StepMark]) -> tuple[str, ...]:
    """The optimizers, as the steps tell them, in the order of their first turns; none where they take no turns. Those
    that update together, always or now and then, take none either."""
    marks = sorted((mark for mark in steps if mark.optimizers), key=lambda mark: mark.ordinal)
    counts = Counter(mark.optimizers for mark in marks)
    turns = [bits for bits, count in counts.items() if count > 1]
    if len(turns) < 2 or any(one & other for one, other in combinations(counts, 2)):
        return ()
    following = [(a, b) for a, b in pairwise(marks) if b.ordinal == a.ordinal + 1]
    changes = sum(a.optimizers != b.optimizers for a, b in following)
    if changes < 2 * len(turns) - 1 or len(following) > MOST_IN_A_ROW * changes:
        return ()
    names = {mark.optimizers: mark.optimizer for mark in reversed(marks)}
    return tuple(names[bits] for bits in turns)
