"""Rows of `buckets`."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.schema import Evidence


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
