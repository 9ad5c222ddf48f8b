"""Rows of `rpcs` and `rpc_pairs`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RpcRow:
    """One remote call: its caller's and its callee's records, joined by its id. What an untraced side knew is None.

    Bytes are of payloads and tensors, as they are sent; gradients are what distributed backward sends for the call."""

    id: int | None  # None: only the callee was traced
    op: str | None  # "rpc_sync", "rpc_async", "remote", "to_here", "backward" (of a remote reference)
    function: str
    internal: bool  # torch's own: shutdown's agreement, the type of a remote reference
    caller: str | None  # worker names
    callee: str | None
    rank: int | None  # of the caller
    callee_rank: int | None
    step: int | None  # of the caller
    launch_at_ns: int | None
    issued_at_ns: int | None  # the host may go on
    done_at_ns: int | None
    call_ns: int | None  # launch to done
    run_start_at_ns: int | None
    run_end_at_ns: int | None
    run_ns: int | None  # of a function that gives a future: until it gave it
    nbytes_out: int | None
    nbytes_back: int | None
    gradient_nbytes_out: int | None  # of the result, caller to callee; None where backward sent none
    gradient_nbytes_back: int | None  # of the arguments, callee to caller
    gradient_inferred: bool  # nobody saw those of the arguments leave: their size is that of the arguments
    failed: bool
    error: str | None  # type of what the caller was told, or "timeout"
    gives_future: bool = False  # its run ends when it has given that, not when its result is there


@dataclass(frozen=True, slots=True)
class RpcPairRow:
    """All calls of one kind from one worker to another. Sums leave out what was not measured, and are None where
    nothing was. Where both are the same worker nothing of it went over a wire."""

    caller: str | None
    callee: str | None
    op: str | None
    internal: bool
    calls: int
    failed: int
    unfinished: int  # neither a result nor an error was seen
    nbytes_out: int | None
    nbytes_back: int | None
    gradient_nbytes_out: int
    gradient_nbytes_back: int
    call_ns: int
    runs: int  # seen at the callee
    run_ns: int
    call_median_ns: int | None = None
    run_median_ns: int | None = None
