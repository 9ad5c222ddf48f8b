"""Rows of `units` and `dimensions`."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True)
class UnitRow:
    """What one rank communicated for one unit at once: one collective, or all those of a bucket. Each collective of a
    rank is in exactly one row; one that belongs to no unit is in a row of kind "other", which says why."""

    rank: int  # global rank
    step: int | None  # ordinal of the step that launched it; None outside of steps
    seq: int  # of its first collective, or of the hook that did without
    kind: str  # what the unit groups: "bucket", "fsdp", "tensor", "pipeline", "expert", or "other"
    name: str  # path of the unit's module, "bucket 2", or for "other" the operation
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
    `exposed_comm_ns`. `exposed_charged_ns` = `peer_wait_ns` + `bubble_ns` + `transfer_ns` + `unmatched_ns`."""

    rank: int  # global rank
    step: int  # ordinal of the step
    dimension: str  # of parallelism: "dp", "fsdp", "tp", "pp", "ep", "cp" or "other"
    mesh: str  # the DeviceMesh's own name of the dimension; empty where it has none, or none is known
    calls: int  # collectives that ran in the step
    nbytes: int | None  # of the larger side of those that began in it; None where a foreign trace does not tell
    comm_ns: int | None  # they ran, each by itself
    exposed_charged_ns: int | None  # their share of the step's exposed communication
    peer_wait_ns: int | None = None  # part of it before the last rank had come; None, as the next three, where
    #   exposed_charged is
    bubble_ns: int | None = None  # part of it in which the schedule of a pipeline has nothing to do for the rank
    transfer_ns: int | None = None  # part of it in which all of their ranks had come
    unmatched_ns: int | None = None  # part of it of which nothing tells when the other ranks came
