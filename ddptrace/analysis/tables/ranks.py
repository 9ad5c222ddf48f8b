"""Rows of the tables that compare ranks: `matches`, `arrivals`, `blame`, `suspects`, `critical_path`, `clocks`,
`desyncs`; and a rank's trail, of which these are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.rows import row


@dataclass(frozen=True, slots=True)
class DesyncRow:
    """Where one rank's calls of a group part from the other ranks': what it called at that turn, and what they
    called."""

    group: str  # process group
    turn: int  # k-th call of the group, sends and receives left out
    rank: int  # global rank that differs
    kind: str  # "missing", "extra", "reordered", "order", "size", "dtype" or "root"
    op: str  # what it called; "" where it called nothing more
    nbytes: int | None  # of its call
    dtype: str  # of its call
    site: str | None  # line of its program
    step: int | None  # ordinal of its step
    expected_op: str  # what the others called
    expected_nbytes: int | None  # of their call
    expected_dtype: str  # of their call
    expected_site: str | None  # line of their program
    expected_rank: int  # one of the ranks that called it
    root: int | None = None  # global rank of its root; None without a root
    expected_root: int | None = None  # global rank of the others' root
    origin: str | None = None  # who asked for its call, a word of `schema.Origin`
    expected_origin: str | None = None  # who asked for the others' call
    through: str | None = None  # line of the library that issued its call for the program
    expected_through: str | None = None  # line of the library that issued the others' call


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A piece of one rank's clock against the reference rank's: rank's instant = t + offset + drift x (t - begin).

    The uncertainty is proved: no offset further away fits what the ranks sent each other. It lies on a line between its
    values at begin and end; None where nothing proves anything."""

    rank: int  # global rank
    reference: int  # rank whose clock it is compared with
    begin_at_ns: int  # from here on, in the reference's time; the first piece holds before it, too
    end_at_ns: int  # until here; the last piece holds after it, too
    offset_ns: int  # how far the rank's clock is ahead at begin
    drift_ratio: float  # how much faster it runs
    uncertainty_ns: int | None  # how far off the offset can be at begin
    uncertainty_end_ns: int | None  # how far off it can be at end
    collectives: int  # number that it rests on
    shifted: bool  # the rank's instants in all tables are on the reference's time
    why: str  # "same clock", "fitted", "disagrees" (fitted, though both ran on one machine), "clock pairs", "not
    #   fitted" or "as recorded" (offset and drift are known, and not taken off)


@row
@dataclass(frozen=True, slots=True)
class ArrivalRow:
    """One rank in one matched collective, by both estimates. wait + transfer = the rank's execution, for each. The
    clock-free estimate calls waiting what an execution takes longer than the shortest one over the ranks."""

    match: int  # row of `matches`
    rank: int  # global rank
    seq: int  # `seq` in `collectives`
    step: int | None  # ordinal of the step
    arrival_at_ns: int  # when it arrived
    arrived_by: str  # "exec": begin of its execution; "launch": its call
    waited_ns: int | None  # last arrival - its own; None where their clocks are not comparable, or a rank is missing
    wait_ns: int | None  # execution until the last rank arrived, by aligned clocks
    transfer_ns: int | None  # the rest of its execution
    free_wait_ns: int | None  # waiting by the clock-free estimate
    free_transfer_ns: int | None  # transfer by the clock-free estimate


@row
@dataclass(frozen=True, slots=True)
class BlameRow:
    """What one step of all ranks would have been shorter by, had this rank's time in this phase been spread over the
    steps as the others' is. It is negative where the rank is the faster one, and only its mean over steps tells
    something."""

    rank: int  # global rank
    step: int  # ordinal of the step
    phase: str  # one of `LOCAL_PHASES`, or "all" of them together
    cost_ns: int  # what the step would have been shorter by
    excess_ns: int  # the rank's own time less the others' median


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """A rank that makes the others wait again and again; dearest first."""

    rank: int  # global rank
    host: str  # its host
    phase: str  # one of `LOCAL_PHASES`, or "transfer"
    cause: str  # "data", "forward", "backward", "optimizer", "other", "garbage collection", "processor quota",
    #   "processor contention", "slow link" or "slow device"
    cost_ns: int  # per step, mean
    cost_ratio: float  # cost / typical step
    low_ns: int  # low end of the 95 % interval of that mean
    high_ns: int  # high end
    persistent: bool  # in at least 80 % of the steps
    steps: int  # steps that this rests on
    evidence: str  # one clause: what the cause rests on
    all_phases: bool = False  # the cost is of all its phases; `phase` is the one that it lies in most


@row
@dataclass(frozen=True, slots=True)
class PathRow:
    """A piece of the critical path, in time order; pieces touch."""

    step: int | None  # ordinal of the step; None outside of steps
    rank: int  # global rank that everything waited for
    what: str  # a phase of that rank, or "transfer"
    match: int | None  # of a transfer, row of `matches`
    begin_at_ns: int  # begin of the piece
    end_at_ns: int  # its end


@row
@dataclass(frozen=True, slots=True)
class MatchRow:
    """One collective on all ranks whose files show it. Instants are on the time line of `clocks`. A rank arrives when
    its execution begins, or where that is inferred, with its call."""

    match: int  # number of the row
    group: str  # process group
    ordinal: int  # k-th call of the group, from 0
    op: str  # operation
    nbytes: int | None  # of the larger side; None where it is not known
    ranks: tuple[int, ...]  # global ranks that show it
    seqs: tuple[int, ...]  # `seq` in `collectives` on each of these ranks
    first_start_at_ns: int  # first begin of its execution on any rank
    last_start_at_ns: int  # last begin
    first_end_at_ns: int  # first end
    last_end_at_ns: int  # last end
    transfer_ns: int  # shortest execution over the ranks
    last_rank: int | None = None  # last rank to arrive; None, as the next seven, where arrivals cannot be compared
    last_arrival_at_ns: int | None = None  # when it arrived
    skew_ns: int | None = None  # from the first arrival to the last
    blame_ns: int | None = None  # from the last but one arrival to the last
    aligned_transfer_ns: int | None = None  # from the last arrival on, median over the ranks
    busbw_bytes_per_s: float | None = None  # bus bandwidth of the transfer alone
    agrees: bool | None = None  # both estimates of the transfer agree within their uncertainty
    uncertainty_ns: int | None = None  # of the arrivals against each other
    bucket: tuple[int, int, int] | None = None  # (reducer, layout, index) of the bucket that it carried
    step: int | None = None  # ordinal of the step on the lowest rank


Ints = NDArray[np.int64]
LAUNCH: Final = 0
WAIT: Final = 1
STEP_END: Final = 2
LOCAL_PHASES: Final = ("data", "forward", "backward", "optimizer", "other")
"""Columns of `Trail.local_ns`."""


@dataclass(frozen=True, slots=True)
class Trail:
    """One rank's life between its meetings with others, in time order. Columns of shape (n,), `local_ns` (n, 5).

    An event is a launch of a collective, the end of a wait for one, or the end of a step. `local_ns` is what the rank
    itself did since the event before, waiting left out, by phase. The first event is the begin of the first step, as a
    wait for nothing; others of that kind are stretches between steps of which nothing was recorded."""

    rank: int
    kind: Ints  # LAUNCH, WAIT or STEP_END
    at_ns: Ints  # of a wait, its end
    seq: Ints  # of the collective, -2 of one that was not recorded; -1 at the end of a step, and of a wait for nothing
    step: Ints  # that it lies in; -1 outside
    local_ns: Ints
    on_device: bool = False  # it is the device's time: a launch is the begin of an execution
