"""Holds everything that one rank's rows are made of, each thing worked out once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.buckets.occurrences import Key, Occurrence, backward_of, occurrences
from ddptrace.analysis.collectives.execution import Communication, Shares, communications, shares_of
from ddptrace.analysis.collectives.host_waits import Waits, awaited_in, host_waits, is_only_remote, remote_waits
from ddptrace.analysis.collectives.unrecorded import unclaimed_kernels, unrecorded_steps
from ddptrace.analysis.device.steps import DeviceSteps, EventSteps, device_steps, event_steps
from ddptrace.analysis.intervals import Pieces, intersect, pairs, union
from ddptrace.analysis.steps.phases import (
    host_compute,
    is_on_device,
    main_marks,
    phase_pieces,
    profiled_in,
    rank_compute,
    rank_memory,
)
from ddptrace.analysis.units.members import Member, members
from ddptrace.load.tables import Intervals, RankRun
from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class RankView:
    """One rank, understood. Steps and windows are labelled by position in `rank.steps`. A view equals itself alone."""

    rank: RankRun
    steps: Pieces  # wall time
    windows: Pieces  # what the breakdown runs over
    device: DeviceSteps
    events: EventSteps  # of the device's compute stream
    phases: Pieces  # labelled by Phase, 0 other
    comms: tuple[Communication, ...]  # in launch order
    found: tuple[Occurrence, ...]  # in launch order
    unmatched: tuple[Key, ...]
    waits: Waits
    profiled: NDArray[np.bool_]  # by step
    compute: Intervals
    host_compute: Intervals  # what of it is not a device's
    wait_ns: dict[int, int]  # by seq of the communication; absent where nothing is known
    memory: Intervals
    unclaimed: Intervals  # in profiled steps, kernels of no recorded call communicated, and no recorded collective
    unrecorded: NDArray[np.bool_]  # by step: collectives may be missing in its records
    remote: Intervals  # a training thread was blocked on remote calls
    only_remote: bool  # it has no steps of its own
    is_on_device: bool  # it computes there, which the host's own phases tell nothing of
    shares: Shares  # parts of all executions that are known
    members: tuple[Member, ...]  # what each of `comms` is to its unit

    def knows_compute(self, position: int, evidence: Evidence | None = None) -> bool:
        """Whether anything tells when the rank computed in a step, -1 for outside of all; or, by its evidence, during
        an execution: a window that saw it on the device saw what computed there too. Where calls may be missing, so may
        the host's waits, which do not compute."""
        if evidence is Evidence.DEVICE:
            return True
        if not self.is_on_device:
            return position < 0 or not self.unrecorded[position]
        return position >= 0 and bool(self.profiled[position] or self.device.by_events[position])

    def ordinals(self, chosen: NDArray[np.bool_]) -> Iterator[int]:
        """Yield the numbers of some of the steps."""
        return (self.rank.steps[position].ordinal for position in np.flatnonzero(chosen))

    def ordinal(self, position: int) -> int | None:
        """The step's own number, None for position -1: outside every step."""
        return self.rank.steps[position].ordinal if position >= 0 else None


def view_of(rank: RankRun) -> RankView:
    only_remote = is_only_remote(rank)
    if only_remote:
        rank = replace(rank, steps=(), partial_steps=())
    walls = pairs((mark.begin_at_ns, mark.end_at_ns) for mark in rank.steps)
    steps, marks = Pieces.numbered(walls), main_marks(rank)
    phases = phase_pieces(marks, rank)
    seen_in = profiled_in(rank, steps, phases)
    comms = communications(rank)
    unrecorded = unrecorded_steps(rank, walls)
    events = event_steps(rank.device_events, walls, comms, unrecorded, is_shared=bool(rank.device_ranks))
    device, profiled = device_steps(walls, rank.windows, seen_in, events), seen_in >= 0
    windows = Pieces.numbered(device.windows)
    backwards = backward_of(rank, comms)
    found, unmatched = occurrences(rank, comms, backwards)
    waits = host_waits(rank, marks, awaited_in(rank, comms, backwards, found), comms)
    remote = remote_waits(rank)
    compute = rank_compute(rank, windows, phases, profiled, union(waits.host, remote))
    compute = union(compute, intersect(events.compute, union(device.windows[device.by_events])))
    on_host, memory = host_compute(rank, compute), rank_memory(rank, windows, profiled)
    return RankView(
        rank,
        steps,
        windows,
        device,
        events,
        phases,
        comms,
        found,
        unmatched,
        waits,
        profiled,
        compute,
        on_host,
        waits.measured(on_host),
        memory,
        unclaimed_kernels(rank, windows, profiled, comms),
        unrecorded,
        remote,
        only_remote,
        is_on_device(rank),
        shares_of(comms, windows, compute),
        members(rank, comms, found),
    )


Rows = TypeVar("Rows")


def once_per_rank(make: Callable[[RankView], Rows]) -> Callable[[RankView], Rows]:
    """Decorate a function so that it keeps what it made of a view for as long as that lives."""
    made: WeakKeyDictionary[RankView, Rows] = WeakKeyDictionary()

    @wraps(make)
    def kept(view: RankView) -> Rows:
        if view not in made:
            made[view] = make(view)
        return made[view]

    return kept
