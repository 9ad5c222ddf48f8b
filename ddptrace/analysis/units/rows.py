"""Rows of `units`: buckets, the collectives of other units, and those that belong to none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddptrace.analysis.buckets.rows import bucket_rows
from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.units import UnitRow
from ddptrace.analysis.units.members import Member
from ddptrace.analysis.units.uses import Use, Uses
from ddptrace.load.tables import UnitKind
from ddptrace.schema import Phase, UnitRole

PHASES = (Phase.FORWARD, Phase.BACKWARD)


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
    )


@dataclass(frozen=True, slots=True)
class _Times:
    """What a collective has to do with the life of its unit."""

    phase: Phase | None
    ready_at_ns: int | None = None
    needed_at_ns: int | None = None
    freed_at_ns: int | None = None
    distance: int | None = None


def _others(view: RankView) -> Iterator[UnitRow]:
    """All collectives that are no bucket's."""
    uses, count = Uses(view.rank.unit_events), len(view.comms)
    steps = view.steps.at(np.array([comm.launch_at_ns for comm in view.comms], np.int64)).tolist()
    phases = view.phases.at(np.array([comm.launch_at_ns for comm in view.comms], np.int64)).tolist()
    hidden, charged = (_by_comm(view, part, count) for part in (view.shares.hidden, view.shares.charged))
    for at, (comm, member) in enumerate(zip(view.comms, view.members, strict=True)):
        if member.kind is UnitKind.BUCKET or comm.call is None:
            continue
        call, unit = comm.call, member.unit
        ran = None if comm.begin_at_ns is None or comm.end_at_ns is None else comm.end_at_ns - comm.begin_at_ns
        is_known = ran is not None and view.knows_compute(steps[at], comm.evidence)
        times = _times(comm, member, uses, phases[at])
        yield UnitRow(
            rank=view.rank.rank,
            step=view.ordinal(steps[at]),
            seq=comm.seq,
            kind=member.kind.value,
            name=member.name,
            unit=None if unit is None else unit.unit,
            dimension=member.place.dimension,
            phase=None if times.phase is None else times.phase.name.lower(),
            role=member.role,
            nbytes=max(call.nbytes_in, call.nbytes_out) or None,
            whole_nbytes=unit.nbytes if unit is not None and unit.parameters else None,
            sharded_nbytes=unit.sharded_nbytes if unit is not None and unit.parameters else None,
            ready_at_ns=times.ready_at_ns,
            launch_at_ns=comm.launch_at_ns,
            exec_start_at_ns=comm.begin_at_ns,
            exec_end_at_ns=comm.end_at_ns,
            done_at_ns=comm.done_at_ns,
            needed_at_ns=times.needed_at_ns,
            freed_at_ns=times.freed_at_ns,
            prefetch_distance=times.distance,
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
        )


def _by_comm(view: RankView, part: np.ndarray[tuple[int, ...], np.dtype[np.int64]], count: int) -> list[int]:
    totals = np.zeros(count, np.int64)
    np.add.at(totals, view.shares.comm, part)
    return [int(ns) for ns in totals]


def _times(comm: Communication, member: Member, uses: Uses, phase: int) -> _Times:
    call, unit = comm.call, member.unit
    assert call is not None
    said = call.unit_phase or (Phase(phase) if phase in PHASES else None)
    if unit is None:
        return _Times(said)
    if call.role is UnitRole.UNSHARD:
        return _gathered(comm, unit.unit, uses, call.unit_phase, said)
    return _Times(said, ready_at_ns=uses.ready(unit.unit, comm.launch_at_ns))


def _gathered(comm: Communication, unit: int, uses: Uses, said: Phase | None, phase: Phase | None) -> _Times:
    use: Use | None = uses.after(unit, comm.launch_at_ns)
    if use is None:
        return _Times(phase)
    freed = uses.freed(unit, use.end_at_ns)
    return _Times(said or use.phase or phase, None, use.begin_at_ns, freed, uses.distance(use, comm.launch_at_ns))
