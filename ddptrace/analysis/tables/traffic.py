"""Rows of `traffic` and `gradient_traffic`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """All collectives of one kind that one rank issued in one step, of sends, receives and ops with a root those of one
    peer: each counts once, in the step that launched it.

    Bytes are of tensors, None where nothing tells them. `sent_nbytes` is computed, not measured: what one rank of the
    group sends, on average, with an algorithm that sends as little as the op allows (a ring)."""

    rank: int
    step: int | None  # None: launched outside every step
    op: str
    group: str
    group_size: int | None
    origin: str | None  # a word of `schema.Origin`
    dtype: str
    calls: int
    nbytes_in: int | None  # handed over
    nbytes_out: int | None  # filled; 0 where the op works in place
    sent_nbytes: int | None  # None too where the op or the size of its group is not known
    peer: int | None = None  # as in `CollectiveRow`


@dataclass(frozen=True, slots=True)
class GradientTrafficRow:
    """What one reducer sent of its gradients in one step on one rank. Only backwards that gave it a gradient count."""

    rank: int
    step: int
    reducer: int
    name: str  # "DistributedDataParallel of Net"
    gradient_nbytes: int  # of all parameters in its buckets: what one synchronised backward should send
    backwards: int
    synchronised: int  # of them, those that sent gradients
    last_synchronised: bool
    one_update: bool  # the step has its update after all of these backwards, and none before
    nbytes: int | None  # tensors handed to its collectives; None where a hook communicated by other means
    dtypes: tuple[str, ...]  # as they were sent
    hook: str | None  # the user's communication hook, where its registration was seen
    parameter_dtypes: tuple[str, ...]  # of the parameters in its buckets
