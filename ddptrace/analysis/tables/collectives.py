"""Declares the rows of `buckets`, `collectives` and `groups`, and of the side table of what NCCL says."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.load.tables import Identity
from ddptrace.rows import row
from ddptrace.schema import Evidence


@row
@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective call on one rank. A call that ran past the end of its step has one row for each step that it ran
    in (`part`). hidden + exposed = comm for every row that knows them; `exposed_charged_ns` of a step's rows adds up to
    its exposed time."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that it ran in; None outside of steps
    seq: int  # number of the call on its rank, in launch order
    part: int  # 0 in the step where its execution began, then 1, 2, ...
    op: str  # operation
    group: str  # process group
    ordinal: int  # k-th call of its group on its rank, from 0
    nbytes: int | None  # of the larger side; None where a foreign trace does not tell
    dtype: str  # of its tensors
    launch_at_ns: int  # the host issued it; not when communication began
    exec_start_at_ns: int | None  # the communication began
    exec_end_at_ns: int | None  # the communication ended
    done_at_ns: int | None  # the host learned that it was over
    wait_ns: int | None  # the host was blocked on it
    queue_ns: int | None  # from launch to begin of the execution
    comm_ns: int | None  # the communication ran, in this step
    hidden_ns: int | None  # part of comm in which the rank computed; None, as the next two, where that is not known
    exposed_ns: int | None  # the rest of comm
    exposed_charged_ns: int | None  # its share of the step's exposed communication
    evidence: Evidence | None  # where the execution comes from
    bucket: tuple[int, int, int] | None  # (reducer, layout, index) of the bucket that it carried
    group_size: int | None = None  # ranks in its group
    lane: str | None = None  # device stream or backend thread that it ran on
    algbw_bytes_per_s: float | None = None  # bytes / time of the whole execution; in part 0 only, as busbw
    busbw_bytes_per_s: float | None = None  # algbw times the factor of the op; None where op or group size is not known
    identity: Identity = Identity.RECORDED  # what tells which collective this was
    match: int | None = None  # row of `matches`
    origin: str | None = None  # who asked for it, a word of `schema.Origin`; None where a foreign trace does not tell
    site: str | None = None  # line of the program that led to it, as in "train.py:42 in train_step"
    through: str | None = None  # line of the library that issued it for the program
    module: str | None = None  # nn.Module whose forward or backward it belongs to, named from the outermost one
    turn: int | None = None  # as ordinal without sends and receives, so that it is the same on all ranks; in traces of
    #   others the backend's own number (`Seq`)
    peer: int | None = None  # global rank that it sends to or receives from, or its root; None where unknown
    error: str | None = None  # what it failed with, in one sentence
    profiler_range: str | None = None  # name of its range in the profiler's file; not for warm-up steps
    on_device: bool = False  # its tensors are on a device: the host only launches it
    exec_start_inferred: bool = False  # `exec_start_at_ns` is not measured, but follows from the queue's order
    launch_recorded: bool = True  # False: the file does not hold its launch, and `launch_at_ns` is the latest possible
    unit: str | None = None  # name of its unit, as in `units`; None where it is of none
    unit_role: str | None = None  # what it does for its unit, as in `units`
    dimension: str | None = None  # of parallelism, as in `units`
    unknown_args: str | None = None  # JSON of what the profiler's file says of it and this ddptrace does not know

    @property
    def tells_arrival(self) -> bool:
        """Whether its execution began when the rank had come to it, as far as its evidence tells."""
        return self.evidence is not None and self.evidence.tells_arrival


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One process group, as its own ranks describe it."""

    group: str  # name of the group
    ranks: tuple[int, ...]  # its global ranks
    hosts: tuple[str, ...]  # of those of its ranks that left records, each once


@row
@dataclass(frozen=True, slots=True)
class BucketRow:
    """One occurrence of one gradient bucket on one rank."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that launched it; None outside of steps
    backward: int  # ordinal of the backward in its step
    reducer: int  # number of the reducer; a DDP module has one
    layout: int  # up by one each time the reducer rebuilds its buckets
    index: int  # in launch order, from 0
    nbytes: int | None  # of its gradients; None where a foreign trace does not tell
    first_ready_at_ns: int | None  # its first gradient was accumulated
    ready_at_ns: int | None  # its last gradient was accumulated
    launch_at_ns: int  # the host issued the collective; not when communication began
    exec_start_at_ns: int | None  # the communication began
    exec_end_at_ns: int | None  # the communication ended
    wait_ns: int | None  # the host was blocked on it
    comm_ns: int | None  # the communication ran
    hidden_ns: int | None  # part of comm in which the rank computed
    exposed_ns: int | None  # the rest of comm
    exposed_charged_ns: int | None  # its share of the step's exposed communication: the column to sort by
    evidence: Evidence | None  # where the execution comes from, the weakest of its collectives
    parameters: tuple[str, ...]  # names of its parameters, in the bucket's order
    queue_ns: int | None  # from launch to begin of the execution
    done_at_ns: int | None  # the host learned that it was over
    hook: str | None  # name of the user's communication hook
    hook_ns: int | None  # host time inside the hook, launching included
    seqs: tuple[int, ...]  # `seq` of the collectives that carried it; empty where a hook did without
    identity: str = "recorded"  # "recorded", or "order": nothing recorded the reducer, this is the index-th gradient
    #   all-reduce


@dataclass(frozen=True, slots=True)
class NcclRow:
    """All collectives of one function and size that NCCL carried out alike."""

    function: str  # NCCL's name: AllReduce, AllGather, …
    nbytes: int  # as NCCL counts: of an all-gather and a reduce-scatter one rank's part
    algorithm: str | None  # Ring, Tree, NVLS, …; None where no log tells
    protocol: str | None  # LL, LL128, Simple; None where no log tells
    channels: int | None  # that it used; None where no log tells
    chosen: int  # lines of the logs that say so
    timed: int  # collectives of all ranks that NCCL Inspector timed; it does not tell algorithms apart
    ranks: int | None  # of the communicator; None where it was not timed, or communicators differ
    mean_ns: float | None  # time of one, as NCCL Inspector measured it
    algbw_bytes_per_s: float | None  # mean, as NCCL Inspector has it
    busbw_bytes_per_s: float | None  # mean, as NCCL Inspector has it
    timing_source: str | None  # what timed them: kernel_gpu, kernel_cpu or collective_cpu
    run_busbw_bytes_per_s: float | None  # mean of these collectives in the given run; None without one
