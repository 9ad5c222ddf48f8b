"""Declares the rows of `traffic`, `gradient_traffic`, `rpcs` and `rpc_pairs`."""

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


@dataclass(frozen=True, slots=True)
class RpcRow:
    """One remote call: the records of its caller and of its callee, joined by its id. What an untraced side knew is
    None. Bytes are of payloads and tensors as they are sent; gradients are what distributed backward sends for the
    call."""

    id: int | None  # number of the call; None: only the callee was traced
    op: str | None  # "rpc_sync", "rpc_async", "remote", "to_here" or "backward" (of a remote reference)
    function: str  # name of the function that runs at the callee
    internal: bool  # torch's own: the agreement of shutdown, the type of a remote reference
    caller: str | None  # name of the worker that called
    callee: str | None  # name of the worker that ran it
    rank: int | None  # global rank of the caller
    callee_rank: int | None  # global rank of the callee
    step: int | None  # ordinal of the caller's step
    launch_at_ns: int | None  # the caller called
    issued_at_ns: int | None  # the caller's host may go on
    done_at_ns: int | None  # the result was there
    call_ns: int | None  # from launch to done
    run_start_at_ns: int | None  # the callee began to run the function
    run_end_at_ns: int | None  # the callee ended it
    run_ns: int | None  # run time at the callee; of a function that returns a future, until it returned it
    nbytes_out: int | None  # from caller to callee
    nbytes_back: int | None  # from callee to caller
    gradient_nbytes_out: int | None  # gradients of the result, caller to callee; None where backward sent none
    gradient_nbytes_back: int | None  # gradients of the arguments, callee to caller
    gradient_inferred: bool  # nobody saw the arguments' gradients leave: their size is that of the arguments
    failed: bool  # it failed
    error: str | None  # type of the error that the caller saw, or "timeout"
    gives_future: bool = False  # its run ends when it has returned a future, not when its result is there


@dataclass(frozen=True, slots=True)
class RpcPairRow:
    """All calls of one kind from one worker to another. Sums leave out what was not measured, and are None where
    nothing was. Where both are the same worker, nothing of it went over a wire."""

    caller: str | None  # name of the worker that called
    callee: str | None  # name of the worker that ran them
    op: str | None  # as in `rpcs`
    internal: bool  # torch's own calls
    calls: int  # number of calls
    failed: int  # of these, calls that failed
    unfinished: int  # of these, calls of which neither a result nor an error was recorded
    nbytes_out: int | None  # from caller to callee
    nbytes_back: int | None  # from callee to caller
    gradient_nbytes_out: int  # gradients of results, caller to callee
    gradient_nbytes_back: int  # gradients of arguments, callee to caller
    call_ns: int  # sum of call times
    runs: int  # runs recorded at the callee
    run_ns: int  # sum of run times
    call_median_ns: int | None = None  # median of call times
    run_median_ns: int | None = None  # median of run times
