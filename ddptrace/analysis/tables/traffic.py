"""Rows of `traffic` and `gradient_traffic`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """All collectives of one kind that one rank issued in one step; sends, receives and ops with a root, those of one
    peer. Each call counts once, in the step that launched it. Bytes are of tensors. `sent_nbytes` is computed, not
    measured."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that launched them; None outside of steps
    op: str  # operation
    group: str  # process group
    group_size: int | None  # ranks in the group
    origin: str | None  # who asked for them, a word of `schema.Origin`
    dtype: str  # of their tensors
    calls: int  # number of calls
    nbytes_in: int | None  # of tensors handed over; None where nothing tells
    nbytes_out: int | None  # of tensors filled; 0 where the op works in place
    sent_nbytes: int | None  # what one rank of the group sends, on average, with the algorithm that sends least (a
    #   ring); None where op or group size is not known
    peer: int | None = None  # as in `collectives`


@dataclass(frozen=True, slots=True)
class GradientTrafficRow:
    """What one reducer sent of its gradients in one step on one rank. Only backwards that gave it a gradient count."""

    rank: int  # global rank
    step: int  # ordinal of the step
    reducer: int  # number of the reducer
    name: str  # as in "DistributedDataParallel of Net"
    gradient_nbytes: int  # of all parameters in its buckets: what one synchronised backward should send
    backwards: int  # backwards that gave it a gradient
    synchronised: int  # of these, backwards that sent gradients
    last_synchronised: bool  # the last of them sent gradients
    one_update: bool  # the step has its update after all of these backwards, and none before
    nbytes: int | None  # tensors handed to its collectives; None where a hook communicated by other means
    dtypes: tuple[str, ...]  # of the tensors that were sent
    hook: str | None  # the user's communication hook, where its registration was recorded
    parameter_dtypes: tuple[str, ...]  # of the parameters in its buckets
