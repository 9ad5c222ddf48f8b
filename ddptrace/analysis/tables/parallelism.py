"""Declares the rows of `units`, `dimensions`, `parallelism`, `exchanges`, `messages`, `pipeline` and `bubbles`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ddptrace.rows import row
from ddptrace.schema import Evidence


@row
@dataclass(frozen=True, slots=True)
class UnitRow:
    """What one rank communicated for one unit at once: one collective, or all those of a bucket. Each collective of a
    rank is in exactly one row; one that belongs to no unit is in a row of kind "other", which says why."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that launched it; None outside of steps
    seq: int  # of its first collective, or of the hook that did without
    kind: str  # what the unit groups: "bucket", "fsdp", "tensor", "pipeline", "expert", or "other"
    name: str  # path of the unit's module, "bucket 2", or for "other" the operation; the second of a name is "Stack #2"
    unit: int | None  # number of the unit on its rank; None where it was not recorded
    dimension: str  # of parallelism: "dp", "fsdp", "tp", "pp", "ep", "cp" or "other"
    phase: str | None  # "forward" or "backward"; None for neither, and where it is not known
    role: str  # what it does for the unit: "unshard", "reduce-scatter", "all-reduce", or the operation's own name
    nbytes: int | None  # of the larger side of its collectives; None where a foreign trace does not tell
    whole_nbytes: int | None  # of the unit's parameters; None where they are not known
    sharded_nbytes: int | None  # of this rank's shards of them
    ready_at_ns: int | None  # what it sends was complete: a bucket's or unit's last gradient
    launch_at_ns: int  # the host issued it; not when communication began
    exec_start_at_ns: int | None  # the communication began
    exec_end_at_ns: int | None  # the communication ended
    done_at_ns: int | None  # the host learned that it was over
    needed_at_ns: int | None  # the gathered parameters, or the result of a tensor-parallel module, came to use
    freed_at_ns: int | None  # the gathered parameters were let go
    prefetch_distance: int | None  # how many units ahead of its own use a gather was launched; 0: when it was needed
    comm_ns: int | None  # the communication ran
    hidden_ns: int | None  # part of comm in which the rank computed
    exposed_ns: int | None  # the rest of comm
    exposed_charged_ns: int | None  # its share of the step's exposed communication: the column to sort by
    queue_ns: int | None  # from launch to begin of the execution
    wait_ns: int | None  # the host was blocked on it
    evidence: Evidence | None  # where the execution comes from, the weakest of its collectives
    microbatch: int | None  # of a pipeline, from 0
    seqs: tuple[int, ...]  # `seq` of its collectives; empty where a hook did without
    reason: str | None  # why it belongs to no unit; None where it does
    behind_ns: int | None = None  # part of queue in which other collectives of its process group ran
    hideable_ns: int | None = None  # part of exposed_charged of a gather that computation would hide, were it launched
    #   one unit earlier, or were it not waited for at once (`blocks`); None without a unit before it in its phase
    edge: str | None = None  # "first": first gather of its step, with no unit before it; "last": last reduction of it
    is_root: bool = False  # its unit has what no unit inside it has
    reshards: bool | None = None  # its unit lets go of the gathered parameters after forward
    blocks: bool = False  # the host waits for it at once, so that an earlier launch hides nothing
    mesh: str = ""  # the DeviceMesh's own name of the dimension; empty where it has none, or none is known
    slack_ns: int | None = None  # of a tensor-parallel module: time that the rank computed between the launch and the
    #   need of the result; None for others, and where nothing tells when it was needed


@dataclass(frozen=True, slots=True)
class DimensionRow:
    """What the communication along one dimension of parallelism cost one step of one rank. A step's rows add up to its
    `exposed_comm_ns`: the one of dimension "unknown" has communication kernels of no recorded call, while no recorded
    collective ran. `exposed_charged_ns` = `peer_wait_ns` + `bubble_ns` + `transfer_ns` + `unmatched_ns`."""

    rank: int  # global rank
    step: int  # ordinal of the step
    dimension: str  # of parallelism: "dp", "fsdp", "tp", "pp", "ep", "cp" or "other"; "unknown" as above
    mesh: str  # the DeviceMesh's own name of the dimension; empty where it has none, or none is known
    calls: int | None  # collectives that ran in the step; None for "unknown"
    nbytes: int | None  # of the larger side of those that began in it; None for "unknown", and where a foreign trace
    #   does not tell
    comm_ns: int | None  # they ran, each by itself; of "unknown", any of them
    exposed_charged_ns: int | None  # their share of the step's exposed communication
    peer_wait_ns: int | None = None  # part of it before the last rank had come; None, as the next three, where
    #   exposed_charged is
    bubble_ns: int | None = None  # part of it in which the schedule of a pipeline has nothing to do for the rank
    transfer_ns: int | None = None  # part of it in which all of their ranks had come
    unmatched_ns: int | None = None  # part of it of which nothing tells when the other ranks came


class Kind(enum.StrEnum):
    """A way in which ranks share the work of one model."""

    DDP = "ddp"  # DistributedDataParallel, or ddptrace's own reducer
    DATA = "data-parallel"  # gradients are reduced without one of these
    FSDP = "fsdp"
    ZERO = "zero"  # a sharded optimizer: ranks update a part each
    TENSOR = "tensor-parallel"
    PIPELINE = "pipeline-parallel"
    EXPERT = "expert-parallel"
    EMBEDDINGS = "sharded-embeddings"
    INFERENCE = "inference"  # the model is served, not trained


@dataclass(frozen=True, slots=True)
class ParallelismRow:
    """One kind of parallelism that the run shows."""

    kind: str  # ddp, data-parallel, fsdp, zero, tensor-parallel, pipeline-parallel, expert-parallel,
    #   sharded-embeddings or inference
    told_by: str  # what shows it: the reducer, the origins of collectives, or the engine that serves the model
    group_size: int | None  # ranks that share the work, where that is known
    calls: int  # collectives that belong to it, on all ranks
    exposed_ns: int | None  # their share of the steps' exposed communication, all together; None where it is not known


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
