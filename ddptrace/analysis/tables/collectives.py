"""Rows of `buckets`, `collectives` and `groups`."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.load.tables import Identity
from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective call on one rank. One that ran past the end of its step has one row per step it ran in (`part`);
    hidden + exposed = comm holds for every row that knows them; `exposed_charged_ns` of a step's rows adds up to its
    exposed time."""

    rank: int
    step: int | None  # None: it ran outside every step
    seq: int
    part: int
    op: str
    group: str
    ordinal: int
    nbytes: int | None  # of the larger side; None where a foreign trace does not tell
    dtype: str
    launch_at_ns: int
    exec_start_at_ns: int | None
    exec_end_at_ns: int | None
    done_at_ns: int | None
    wait_ns: int | None
    queue_ns: int | None
    comm_ns: int | None
    hidden_ns: int | None  # this and the next two: None too where nothing told when the rank computed
    exposed_ns: int | None
    exposed_charged_ns: int | None
    evidence: Evidence | None
    bucket: tuple[int, int, int] | None  # (reducer, layout, index) of the bucket it carried
    group_size: int | None = None
    lane: str | None = None  # the device stream or backend thread it ran on
    algbw_bytes_per_s: float | None = None  # of the whole execution, like busbw in its part 0 only
    busbw_bytes_per_s: float | None = None  # algbw times the op's factor; None where op or group size is not known
    identity: Identity = Identity.RECORDED  # what tells which collective this was
    match: int | None = None  # row of `matches`
    origin: str | None = None  # who wanted it, a word of `schema.Origin`; None where a foreign trace does not tell
    site: str | None = None  # "train.py:42 in train_step": the program's line that it comes from
    through: str | None = None  # the line of the library that issued it for the program's
    module: str | None = None  # nn.Module whose forward or backward it belongs to, named from the outermost one
    turn: int | None = None  # as `ordinal`, but sends and receives are left out, so that it is the same on all ranks
    peer: int | None = None  # global rank that it sends to or receives from, or that is its root; None where unknown
    error: str | None = None  # what it failed with, in one sentence, where that was seen
    profiler_range: str | None = None  # name of its range in the profiler's file, where one was on; no warm-up is there
    on_device: bool = False  # its tensors are a device's: the host only launches it


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One process group, as its own ranks describe it."""

    group: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]  # of those of its ranks that left records, each once


@dataclass(frozen=True, slots=True)
class BucketRow:
    """One occurrence of one gradient bucket on one rank. `parameters` are names, in the bucket's order."""

    rank: int
    step: int | None
    backward: int  # ordinal of the backward in its step
    reducer: int
    layout: int
    index: int
    nbytes: int | None  # None where a foreign trace does not tell
    first_ready_at_ns: int | None
    ready_at_ns: int | None
    launch_at_ns: int
    exec_start_at_ns: int | None
    exec_end_at_ns: int | None
    wait_ns: int | None
    comm_ns: int | None
    hidden_ns: int | None
    exposed_ns: int | None
    exposed_charged_ns: int | None
    evidence: Evidence | None
    parameters: tuple[str, ...]
    queue_ns: int | None  # exec start - launch
    done_at_ns: int | None
    hook: str | None  # name of the user's communication hook
    hook_ns: int | None  # host time inside it, the launching of its collectives included
    seqs: tuple[int, ...]  # the collectives that carried it; empty where a hook did without
    identity: str = "recorded"  # "order": nothing recorded the reducer, this is the index-th gradient all-reduce
