"""Rows of `exchanges`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """One all-to-all on one rank: how many bytes it sends to each rank of its group, and gets from each."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that launched it; None outside of steps
    seq: int  # number of the call on its rank, as in `collectives`
    op: str  # operation
    group: str  # process group
    ranks: tuple[int, ...]  # global ranks of the group, in its order
    turn: int | None  # k-th collective of the group, from 0; None where that is not known
    phase: str | None  # "forward" or "backward"; None outside of these
    layer: str  # module that it belongs to, else the line of the program that issued it
    sent_nbytes: tuple[int, ...]  # to each of `ranks`
    launch_at_ns: int  # the host issued it
    received_nbytes: tuple[int, ...] | None = None  # from each of `ranks`; None where a rank's call is not known
    largest_rank: int | None = None  # that gets most; None as above, and where all get as much
    imbalance_ratio: float | None = None  # what that rank gets / mean over the ranks; None where all get nothing
    waited_ns: int | None = None  # from its launch to that of the last rank; None as above, and on a device
