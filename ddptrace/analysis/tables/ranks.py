"""Rows of the tables that compare ranks: `matches`, `arrivals`, `blame`, `suspects`, `critical_path`, `clocks`,
`desyncs`; and a rank's trail, of which these are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DesyncRow:
    """Where one rank's calls of a group part from the other ranks'. What it called at that turn, and what they did."""

    group: str
    turn: int  # k-th call of the group, sends and receives left out
    rank: int
    kind: str  # "missing", "extra", "reordered", "order", "size", "dtype" or "root"
    op: str  # "" where it called nothing more
    nbytes: int | None
    dtype: str
    site: str | None
    step: int | None
    expected_op: str
    expected_nbytes: int | None
    expected_dtype: str
    expected_site: str | None
    expected_rank: int  # one of those that did
    root: int | None = None  # global ranks of the roots; None too where the op has none
    expected_root: int | None = None
    origin: str | None = None  # who wanted it, a word of `schema.Origin`
    expected_origin: str | None = None
    through: str | None = None  # the line of the library that issued it for that of the program
    expected_through: str | None = None


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A piece of one rank's clock against the reference rank's: rank's instant = t + offset + drift x (t - begin).

    The uncertainty is proved: no offset further away fits what the ranks sent each other. It is that at `begin` and at
    `end`, and lies on a line between; None where nothing proves anything."""

    rank: int
    reference: int
    begin_at_ns: int  # from here on, in the reference's time; the first piece holds before too, the last one after
    end_at_ns: int
    offset_ns: int
    drift_ratio: float
    uncertainty_ns: int | None
    uncertainty_end_ns: int | None
    collectives: int  # that it rests on
    shifted: bool  # the rank's instants in all tables are on the reference's time
    why: str  # "same clock", "fitted", "disagrees" (fitted, though it was told to be the same), "clock pairs",


@dataclass(frozen=True, slots=True)
class ArrivalRow:
    """One rank in one matched collective, by both estimates.

    wait + transfer = the rank's execution, for each. `wait_ns`: until the last rank arrived, on aligned time.
    `free_wait_ns`: what it took longer than the shortest execution of all ranks, which needs no clock."""

    match: int  # row of `matches`
    rank: int
    seq: int
    step: int | None
    arrival_at_ns: int
    arrived_by: str  # "exec": begin of its execution; "launch": its call
    waited_ns: int | None  # last arrival - its own; None where their clocks are not comparable, or a rank is not here
    wait_ns: int | None
    transfer_ns: int | None
    free_wait_ns: int | None
    free_transfer_ns: int | None


@dataclass(frozen=True, slots=True)
class BlameRow:
    """What one step of all ranks would have been shorter by, had this rank's time in this phase been spread over the
    steps as the others' is: less than nothing where the rank is the faster one, and only its mean over steps tells
    something. `phase`: one of `LOCAL_PHASES`, or "all" of them together."""

    rank: int
    step: int
    phase: str
    cost_ns: int
    excess_ns: int  # of the rank's own time over the others' median


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """A rank that is named: it made the others wait, again and again. Dearest first."""

    rank: int
    host: str
    phase: str  # one of `LOCAL_PHASES`, or "transfer"
    cause: str  # "data", "forward", "backward", "optimizer", "other", "garbage collection", "processor quota",
    #             "processor contention", "slow link", "slow device"
    cost_ns: int  # per step, mean
    cost_ratio: float  # of the median step
    low_ns: int  # 95 % of that mean
    high_ns: int
    persistent: bool  # in at least 80 % of the steps
    steps: int
    evidence: str  # one clause: what the cause rests on
    all_phases: bool = False  # the cost is of all its phases; `phase` is the one it lies in most


@dataclass(frozen=True, slots=True)
class PathRow:
    """A piece of the critical path, in time order; pieces touch. `what`: a phase, or "transfer" of `match`."""

    step: int | None
    rank: int
    what: str
    match: int | None
    begin_at_ns: int
    end_at_ns: int


@dataclass(frozen=True, slots=True)
class MatchRow:
    """One collective on all the ranks whose files show it: the k-th of its group. Instants are on the time line of
    `clocks`. A rank arrives when its execution begins, or where that is inferred, with its call."""

    match: int
    group: str
    ordinal: int
    op: str
    nbytes: int | None
    ranks: tuple[int, ...]
    seqs: tuple[int, ...]  # on each of `ranks`
    first_start_at_ns: int
    last_start_at_ns: int
    first_end_at_ns: int
    last_end_at_ns: int
    transfer_ns: int  # the shortest execution over the ranks
    last_rank: int | None = None  # the last one to arrive; this and the rest: None where no arrival can be compared
    last_arrival_at_ns: int | None = None
    skew_ns: int | None = None  # between the first arrival and the last
    blame_ns: int | None = None  # between the last but one and the last
    aligned_transfer_ns: int | None = None  # median over ranks, from the last arrival on
    busbw_bytes_per_s: float | None = None  # of the transfer alone
    agrees: bool | None = None  # both estimates of the transfer, within their uncertainty
    uncertainty_ns: int | None = None  # of the arrivals against each other
    bucket: tuple[int, int, int] | None = None  # (reducer, layout, index) that it carried
    step: int | None = None  # on the lowest rank


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
    seq: Ints  # of the collective; -1 at the end of a step, and of a wait for nothing
    step: Ints  # that it lies in; -1 outside
    local_ns: Ints
    on_device: bool = False  # it is the device's time: a launch is the begin of an execution
