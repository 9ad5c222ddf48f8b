"""Makes the rows of `units`: what each unit communicated, how early, and when it was needed.

Gathered parameters of FSDP units are needed at the unit's next use. How early they were gathered:

uses       ├ a ┤           ├ b ┤          ├ c ┤
gathers       ├── b ──┤                             in the use of a: 1 unit ahead of its own use
              ├──────── c ──────────┤               2 units ahead
                                          ├ c ┤     launched when it was needed: 0

The slack of a tensor-parallel collective is how long its rank computes between the launch and the need of the result:

needed at once     launch ├──── exposed ────┤ next layer      by nature: nothing can run meanwhile
with slack         launch ├ compute ┤─ exposed ─┤             by order: what computes meanwhile is too short
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.analysis.buckets.rows import bucket_rows
from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.intervals import Ints, Measure, pairs, subtract, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.steps.breakdown import communicating
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.parallelism import UnitRow
from ddptrace.analysis.units.members import Member
from ddptrace.load.tables import UnitEvent, UnitKind
from ddptrace.rows import row
from ddptrace.schema import Phase, UnitMark, UnitRole

PHASES: Final = (Phase.FORWARD, Phase.BACKWARD)
REDUCTIONS: Final = (UnitRole.REDUCE_SCATTER.word, UnitRole.ALL_REDUCE.word)
FIRST, LAST = "first", "last"


def unit_rows(view: RankView) -> list[UnitRow]:
    """List what each unit communicated, in launch order."""
    of = {comm.seq: member for comm, member in zip(view.comms, view.members, strict=True)}
    buckets = [
        _of_bucket(row, occurrence.comms[0].seq, of[occurrence.comms[0].seq])
        for row, occurrence in zip(bucket_rows(view), view.found, strict=True)
    ]
    return sorted([*buckets, *_others(view)], key=lambda row: (row.launch_at_ns, row.seq))


def _of_bucket(row: BucketRow, seq: int, member: Member) -> UnitRow:
    return UnitRow(
        rank=row.rank,
        step=row.step,
        seq=seq,
        kind=member.kind.value,
        name=member.name,
        unit=None,
        dimension=member.place.dimension,
        phase=Phase.BACKWARD.name.lower(),
        role=member.role,
        nbytes=row.nbytes,
        whole_nbytes=row.nbytes,
        sharded_nbytes=None,
        ready_at_ns=row.ready_at_ns,
        launch_at_ns=row.launch_at_ns,
        exec_start_at_ns=row.exec_start_at_ns,
        exec_end_at_ns=row.exec_end_at_ns,
        done_at_ns=row.done_at_ns,
        needed_at_ns=None,
        freed_at_ns=None,
        prefetch_distance=None,
        comm_ns=row.comm_ns,
        hidden_ns=row.hidden_ns,
        exposed_ns=row.exposed_ns,
        exposed_charged_ns=row.exposed_charged_ns,
        queue_ns=row.queue_ns,
        wait_ns=row.wait_ns,
        evidence=row.evidence,
        microbatch=None,
        seqs=row.seqs,
        reason=None,
        mesh=member.place.mesh,
    )


@row
@dataclass(frozen=True, slots=True)
class _Times:
    """What a collective has to do with the life of its unit."""

    phase: Phase | None
    ready_at_ns: int | None = None
    needed_at_ns: int | None = None
    freed_at_ns: int | None = None
    distance: int | None = None
    before_at_ns: int | None = None  # as `Uses.before`


def _others(view: RankView) -> Iterator[UnitRow]:
    """All collectives that are no bucket's."""
    launches = np.array([comm.launch_at_ns for comm in view.comms], np.int64)
    steps, phases = view.steps.at(launches).tolist(), view.phases.at(launches).tolist()
    uses = Uses(view.rank.unit_events)
    times = [_times(*one, uses) for one in zip(view.comms, view.members, phases, strict=True)]
    hidden, charged = (_by_comm(view, part) for part in (view.shares.hidden, view.shares.charged))
    behind, before, edges = _behind(view), _free_before(view, launches, steps, times), _edges(view, steps)
    slack = _slack_by_position(view)
    for at, (comm, member) in enumerate(zip(view.comms, view.members, strict=True)):
        if member.kind is UnitKind.BUCKET or comm.call is None:
            continue
        call, unit, mine = comm.call, member.unit, times[at]
        ran = None if comm.begin_at_ns is None or comm.end_at_ns is None else comm.end_at_ns - comm.begin_at_ns
        is_known = ran is not None and view.knows_compute(steps[at], comm.evidence)
        yield UnitRow(
            rank=view.rank.rank,
            step=view.ordinal(steps[at]),
            seq=comm.seq,
            kind=member.kind.value,
            name=member.name,
            unit=None if unit is None else unit.unit,
            dimension=member.place.dimension,
            phase=None if mine.phase is None else mine.phase.name.lower(),
            role=member.role,
            nbytes=max(call.nbytes_in, call.nbytes_out) or None,
            whole_nbytes=unit.nbytes if unit is not None and unit.parameters else None,
            sharded_nbytes=unit.sharded_nbytes if unit is not None and unit.parameters else None,
            ready_at_ns=mine.ready_at_ns,
            launch_at_ns=comm.launch_at_ns,
            exec_start_at_ns=comm.begin_at_ns,
            exec_end_at_ns=comm.end_at_ns,
            done_at_ns=comm.done_at_ns,
            needed_at_ns=mine.needed_at_ns if at not in slack else slack[at][0],
            freed_at_ns=mine.freed_at_ns,
            prefetch_distance=mine.distance,
            comm_ns=ran,
            hidden_ns=hidden[at] if is_known else None,
            exposed_ns=ran - hidden[at] if ran is not None and is_known else None,
            exposed_charged_ns=charged[at] if is_known else None,
            queue_ns=None if comm.begin_at_ns is None else comm.begin_at_ns - comm.launch_at_ns,
            wait_ns=view.wait_ns.get(comm.seq),
            evidence=comm.evidence,
            microbatch=call.microbatch,
            seqs=(comm.seq,),
            reason=member.reason,
            behind_ns=behind.get(at),
            hideable_ns=min(charged[at], before[at]) if is_known and at in before else None,
            edge=edges.get(at),
            is_root=unit is not None and unit.is_root,
            reshards=None if unit is None else unit.reshards,
            blocks=_blocks(comm),
            mesh=member.place.mesh,
            slack_ns=slack[at][1] if at in slack and view.knows_compute(steps[at]) else None,
        )


def _by_comm(view: RankView, part: Ints) -> list[int]:
    totals = np.zeros(len(view.comms), np.int64)
    np.add.at(totals, view.shares.comm, part)
    return [int(ns) for ns in totals]


def _times(comm: Communication, member: Member, phase: int, uses: Uses) -> _Times:
    call, unit = comm.call, member.unit
    said = None if call is None else call.unit_phase
    near = Phase(phase) if phase in PHASES else None
    if call is None or unit is None:
        return _Times(said or near)
    if call.role is not UnitRole.UNSHARD:
        return _Times(said or near, ready_at_ns=uses.ready(unit.unit, comm.launch_at_ns))
    use = uses.after(unit.unit, comm.launch_at_ns)
    if use is None:
        return _Times(said or near)
    return _Times(
        said or use.phase or near,
        None,
        use.begin_at_ns,
        uses.freed(unit.unit, use.end_at_ns),
        uses.distance(use, comm.launch_at_ns),
        uses.before(use, comm.launch_at_ns),
    )


def _free_before(view: RankView, launches: Ints, steps: Sequence[int], times: Sequence[_Times]) -> dict[int, int]:
    """Return, by position of a gather, how long the rank computed without any communication where the gather could have
    run."""
    spans = dict(_beside(view, launches.tolist(), steps, times))
    free = Measure(subtract(view.compute, communicating(view)))
    within = pairs(spans.values())
    return dict(zip(spans, free.within(within[:, 0], within[:, 1]).tolist(), strict=True))


def _beside(
    view: RankView, launches: Sequence[int], steps: Sequence[int], times: Sequence[_Times]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield, by position of a gather, the time in which it could have run beside computation: from when the unit before
    came to use until its launch; if it was launched ahead and the host waited for it at once, until it was needed."""
    for at, (comm, step, one) in enumerate(zip(view.comms, steps, times, strict=True)):
        if step < 0 or one.needed_at_ns is None:
            continue
        if one.distance and _blocks(comm):
            yield at, (launches[at], max(launches[at], one.needed_at_ns))
        elif one.before_at_ns is not None and one.before_at_ns >= view.rank.steps[step].begin_at_ns:
            yield at, (one.before_at_ns, launches[at])


def _blocks(comm: Communication) -> bool:
    """Whether the host waits for it at once."""
    return comm.call is not None and comm.call.is_sync and not comm.call.on_device


def _behind(view: RankView) -> dict[int, int]:
    """Return, by position of a communication, how long other collectives of its group ran while it was queued."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for at, comm in enumerate(view.comms):
        if comm.call is not None and comm.begin_at_ns is not None:
            groups[comm.call.group].append(at)
    found: dict[int, int] = {}
    for mine in groups.values():
        ran = pairs((view.comms[at].begin_at_ns or 0, view.comms[at].end_at_ns or 0) for at in mine)
        queued = np.array([view.comms[at].launch_at_ns for at in mine], np.int64)
        found |= dict(zip(mine, Measure(union(ran)).within(queued, ran[:, 0]).tolist(), strict=True))
    return found


def _edges(view: RankView, steps: Sequence[int]) -> dict[int, str]:
    """Return, by position, the first gather and the last reduction of the FSDP units of each step."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, (member, step) in enumerate(zip(view.members, steps, strict=True)):
        if member.kind is UnitKind.FSDP and step >= 0:
            if member.role == UnitRole.UNSHARD.word:
                first.setdefault(step, at)
            elif member.role in REDUCTIONS:
                last[step] = at
    return dict.fromkeys(first.values(), FIRST) | dict.fromkeys(last.values(), LAST)


# Slack of tensor-parallel collectives ---------------------------------------------------------------------------------


def _slack_by_position(view: RankView) -> dict[int, tuple[int, int]]:
    """Return, by position of a communication of a tensor-parallel module, when its result was needed and its slack."""
    found = dict(_needs(view))
    spans = pairs((begin, max(begin, needed)) for begin, needed in found.values())
    slack = Measure(view.compute).within(spans[:, 0], spans[:, 1]).tolist()
    return {at: (needed, ns) for (at, (_, needed)), ns in zip(found.items(), slack, strict=True)}


def _needs(view: RankView) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield when the communication could begin at the earliest, and when its result was needed."""
    for at, (comm, member) in enumerate(zip(view.comms, view.members, strict=True)):
        if member.kind is UnitKind.TENSOR and comm.call is not None:
            span = _need_on_device(comm) if comm.call.on_device else _need_on_host(comm)
            if span is not None:
                yield at, span


def _need_on_host(comm: Communication) -> tuple[int, int] | None:
    call = comm.call
    return None if call is None or not call.waits else (call.issued_at_ns, min(begin for begin, _ in call.waits))


def _need_on_device(comm: Communication) -> tuple[int, int] | None:
    """By events: on the compute stream."""
    call = comm.call
    if call is None or call.events is None or not call.stream_waits:
        return None
    return call.events.ready_at_ns, min(wait.begin_at_ns for wait in call.stream_waits)


# The life of parameters and gradients ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a unit's parameters. `place`: among all uses of the rank, in time order."""

    place: int
    begin_at_ns: int
    end_at_ns: int
    phase: Phase | None


class Uses:
    """What happened to the units of one rank."""

    def __init__(self, events: Sequence[UnitEvent]) -> None:
        used = sorted((one for one in events if one.mark is UnitMark.USE), key=lambda one: one.begin_at_ns)
        self._begins = [one.begin_at_ns for one in used]
        self._phases = [one.phase for one in used]
        self._uses: defaultdict[int, list[Use]] = defaultdict(list)
        for place, one in enumerate(used):
            self._uses[one.unit].append(Use(place, one.begin_at_ns, one.end_at_ns, one.phase))
        self._ready = _begins(events, UnitMark.READY)
        self._freed = _begins(events, UnitMark.FREED)

    def after(self, unit: int, launch_at_ns: int) -> Use | None:
        """Return the use that a gather launched at this instant was for: the first one that was not over."""
        uses = self._uses.get(unit, [])
        place = bisect_right(uses, launch_at_ns, key=lambda use: use.end_at_ns)
        return uses[place] if place < len(uses) else None

    def distance(self, use: Use, launch_at_ns: int) -> int:
        """Return how many units ahead of its use a gather was launched."""
        return max(0, use.place - (bisect_right(self._begins, launch_at_ns) - 1))

    def before(self, use: Use, launch_at_ns: int) -> int | None:
        """Return when the unit before came to use: the earliest instant at which a gather launched one unit earlier can
        be under way. None without such a unit in the phase of the gather's own use."""
        place = bisect_right(self._begins, launch_at_ns) - 2
        return self._begins[place] if place >= 0 and self._phases[place] is use.phase else None

    def ready(self, unit: int, launch_at_ns: int) -> int | None:
        """Return when the gradients were ready that a unit sent at this instant."""
        mine = self._ready.get(unit, [])
        before = bisect_right(mine, launch_at_ns)
        return mine[before - 1] if before else None

    def freed(self, unit: int, at_ns: int) -> int | None:
        """Return when the unit's whole parameters were let go after an instant; None if they were not."""
        mine = self._freed.get(unit, [])
        after = bisect_left(mine, at_ns)
        return mine[after] if after < len(mine) else None


def _begins(events: Sequence[UnitEvent], mark: UnitMark) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for one in events:
        if one.mark is mark:
            found[one.unit].append(one.begin_at_ns)
    return {unit: sorted(instants) for unit, instants in found.items()}
