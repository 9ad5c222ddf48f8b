"""Rows of `messages`, `pipeline` and `bubbles`."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Work(enum.StrEnum):
    """What a stage of a pipeline computes of one microbatch."""

    FORWARD = "forward"
    BACKWARD = "backward"  # all of it
    INPUTS = "backward-inputs"  # the gradients of its inputs alone, which the stage before it needs
    WEIGHTS = "backward-weights"  # the gradients of its parameters alone, which no other stage needs


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One send or receive on one rank, with the call of the other rank that it met. Where the rank was blocked on it,
    that time is `peer_wait_ns` until both had come to it, and `transfer_ns` from then on."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that launched it; None outside of steps
    seq: int  # number of the call on its rank, as in `collectives`
    op: str  # operation
    group: str  # process group
    source: int  # global rank that sends
    destination: int  # global rank that receives
    turn: int | None  # of a pipeline: k-th time that its schedule ran, from 0; None for other messages, as the next two
    phase: str | None  # forward: activations; backward: their gradients
    microbatch: int | None  # that it is of, from 0
    nth: int  # k-th message of those with the same values from `group` to `microbatch`, from 0
    nbytes: int  # of the tensor
    unit: int | None  # number of the stage on its rank, as in `units`; None for other messages
    launch_at_ns: int  # the host issued it
    arrived_at_ns: int | None  # the rank came to it: the launch, or on a device, when it had computed what was launched
    #   before; None where nothing tells that
    wait_begin_at_ns: int | None  # the rank began to wait for it: the host, or on a device, the compute stream; None
    #   where neither did
    wait_end_at_ns: int | None  # it went on
    other_seq: int | None = None  # number of the call that it met, on the other rank; None where that is not known
    other_arrived_at_ns: int | None = None  # the other rank came to that
    peer_wait_ns: int | None = None  # blocked before the other rank came; None where that is not known
    transfer_ns: int | None = None  # blocked while both had come


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """One computation of a pipeline's stage: forward or backward of one microbatch. `before_ns` is the time since the
    computation before it on its rank, or since the turn began; `peer_wait_ns`, `transfer_ns` and `other_ns` add up to
    it."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that it began in; None outside of steps
    pipeline: int  # number of the pipeline in the run, from 0
    turn: int  # k-th time that the schedule ran, from 0
    stage: int  # number of the stage, from 0
    microbatch: int  # number of the microbatch, from 0
    work: str  # forward, backward, backward-inputs or backward-weights
    begin_at_ns: int  # it began; on a device, by events on its compute stream
    end_at_ns: int  # it ended
    before_ns: int | None = None  # None, as the next three, where not all ranks of the pipeline are known
    peer_wait_ns: int | None = None  # blocked on a message that the other rank had not come to
    transfer_ns: int | None = None  # blocked on a message that both ranks had come to
    other_ns: int | None = None  # the rest: not blocked on a message


@dataclass(frozen=True, slots=True)
class BubbleRow:
    """Where the time of one rank went in one turn of its pipeline, from the first computation of any stage to the last.
    `window_ns` = `compute_ns` + `bubble_ns` + `stage_wait_ns` + `transfer_ns` + `other_ns`."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that the turn began in on this rank; None outside of steps
    pipeline: int  # as in `pipeline`
    turn: int  # as in `pipeline`
    schedule: str  # class of the schedule
    stages: tuple[int, ...]  # of this rank
    microbatches: int  # in the turn
    window_ns: int  # from the first computation of any stage to the end of the last
    compute_ns: int  # its stages computed
    bubble_ns: int  # idle, because the schedule gives it nothing to do
    stage_wait_ns: int  # idle beyond that, because another stage takes longer than a typical one
    transfer_ns: int  # blocked on messages that both ranks had come to
    other_ns: int  # the rest: work of the host between computations, an update while the others still compute
    ideal_bubble_ns: int  # the bubble if all stages took as long as a typical one, and messages no time
    ideal_window_ns: int  # how long the turn would take then
