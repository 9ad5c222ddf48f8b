"""Remote calls: each rank's own, then both sides of every call together, then the sums of every pair of workers; and
what a rank waited for while remote calls blocked it and nothing else ran.

forward    [ call a ┄┄┄┄┄┄┄┄┄┄┄ ]                         a function at a worker
backward                           [ local ┄┄┄┄┄┄┄┄┄ ]    the distributed backward as a whole
waited         [─── a ─────────)          [backward)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.steps.breakdown import remote_idle
from ddptrace.analysis.tables.traffic import RpcPairRow, RpcRow
from ddptrace.load.tables import RankRpc, RpcCall, RpcRun
from ddptrace.schema import CALL_BITS, Phase

Key = tuple[str | None, str | None, str | None, bool]  # caller, callee, op, internal
Target = tuple[str, str | None]
"""A function and its worker."""
BACKWARD: Final[Target] = "", ""
UNKNOWN: Final[Target] = "", None
"""No call was under way."""
NEVER: Final = 2**63
"""When a call is done whose end the records do not hold."""


@dataclass(frozen=True, slots=True)
class RankCalls:
    """One rank's remote calls and runs; `steps` are those of the calls."""

    rank: int
    rpc: RankRpc
    steps: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class _Served:
    """One run, and where."""

    rank: int
    worker: str | None
    run: RpcRun


def rank_calls(view: RankView) -> RankCalls:
    calls = view.rank.rpc.calls
    at = view.steps.at(np.array([call.begin_at_ns for call in calls], np.int64)).tolist() if calls else []
    return RankCalls(view.rank.rank, view.rank.rpc, tuple(view.ordinal(position) for position in at))


def rpc_rows(ranks: Sequence[RankCalls]) -> list[RpcRow]:
    """One row per call, and one per run whose call nobody recorded; in time order."""
    homes = {name: rank.rank for rank in ranks for _, name in rank.rpc.workers}
    served: dict[int, _Served] = {}
    strangers = []
    for rank in ranks:
        worker = rank.rpc.workers[-1][1] if rank.rpc.workers else None
        for run in rank.rpc.runs:
            one = _Served(rank.rank, worker, run)
            if run.call is None:
                strangers.append(one)
            else:
                served[run.call] = one
    rows = [
        _rpc_row(rank, call, step, served.pop(call.id, None), homes)
        for rank in ranks
        for call, step in zip(rank.rpc.calls, rank.steps, strict=True)
    ]
    rows += [_run_alone(one, homes) for one in (*strangers, *served.values())]
    return sorted(rows, key=_begin)


def rpc_pair_rows(rows: Iterable[RpcRow]) -> list[RpcPairRow]:
    """Sorted by caller, callee and op; torch's own calls last."""
    kinds: dict[Key, list[RpcRow]] = defaultdict(list)
    for row in rows:
        kinds[row.caller, row.callee, row.op, row.internal].append(row)
    order = sorted(kinds, key=lambda key: (key[3], *(part or "" for part in key[:3])))
    return [_pair(key, kinds[key]) for key in order]


def _rpc_row(
    rank: RankCalls, call: RpcCall, step: int | None, served: _Served | None, homes: Mapping[str, int]
) -> RpcRow:
    run = served.run if served else None
    back, inferred = _argument_gradients(call, run)
    return RpcRow(
        call.id,
        call.op.name.lower(),
        call.function,
        call.is_internal,
        _caller(rank, call, run),
        call.callee,
        rank.rank,
        served.rank if served else homes.get(call.callee),
        step,
        call.begin_at_ns,
        call.issued_at_ns,
        call.done_at_ns,
        None if call.done_at_ns is None else call.done_at_ns - call.begin_at_ns,
        *_times(run),
        _carried(call, call.nbytes_out),
        run.nbytes_back if call.nbytes_back is None and run else _carried(call, call.nbytes_back),
        call.gradient_nbytes,
        back,
        inferred,
        call.error is not None or (run is not None and run.failed),
        call.error,
        call.gives_future,
    )


def _run_alone(served: _Served, homes: Mapping[str, int]) -> RpcRow:
    run = served.run
    caller_rank = homes.get(run.caller) if run.caller else None
    return RpcRow(
        run.call,
        None,
        run.function,
        run.is_internal,
        run.caller,
        served.worker,
        caller_rank,
        served.rank,
        None,
        None,
        None,
        None,
        None,
        *_times(run),
        run.nbytes_in,
        run.nbytes_back,
        None,
        run.gradient_nbytes,
        False,
        run.failed,
        None,
        run.gives_future,
    )


def _caller(rank: RankCalls, call: RpcCall, run: RpcRun | None) -> str | None:
    """A process that shut RPC down and joined anew has several names: the callee knows which one it was, and the call's
    id, unless the worker's was the same."""
    if run is not None and run.caller is not None:
        return run.caller
    return dict(rank.rpc.workers).get(call.id >> CALL_BITS)


def _argument_gradients(call: RpcCall, run: RpcRun | None) -> tuple[int | None, bool]:
    """As the callee saw them leave; where it could not, their full size if backward did reach the call's result."""
    if run is not None and run.gradient_nbytes is not None:
        return run.gradient_nbytes, False
    if call.wants_nbytes and call.gradient_nbytes is not None and run is None:
        return call.wants_nbytes, True
    return None, False


def _carried(call: RpcCall, nbytes: int | None) -> int | None:
    """Of a builtin or TorchScript function only tensors are measured: without any, nothing is."""
    return nbytes or None if call.is_native else nbytes


def _times(run: RpcRun | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if run is None else (run.begin_at_ns, run.end_at_ns, run.end_at_ns - run.begin_at_ns)


def _begin(row: RpcRow) -> int:
    return next((at for at in (row.launch_at_ns, row.run_start_at_ns) if at is not None), 0)


def _pair(key: Key, rows: Sequence[RpcRow]) -> RpcPairRow:
    unfinished = sum(row.launch_at_ns is not None and row.done_at_ns is None for row in rows)
    calls, runs = _known(rows, "call_ns"), _known(rows, "run_ns")
    return RpcPairRow(
        *key,
        len(rows),
        failed=sum(row.failed for row in rows),
        unfinished=unfinished,
        nbytes_out=_sum_known(rows, "nbytes_out"),
        nbytes_back=_sum_known(rows, "nbytes_back"),
        gradient_nbytes_out=sum(_known(rows, "gradient_nbytes_out")),
        gradient_nbytes_back=sum(_known(rows, "gradient_nbytes_back")),
        call_ns=sum(calls),
        runs=len(runs),
        run_ns=sum(runs),
        call_median_ns=_median(calls),
        run_median_ns=_median(runs),
    )


def _known(rows: Iterable[RpcRow], name: str) -> list[int]:
    values: Iterator[int | None] = map(attrgetter(name), rows)
    return [value for value in values if value is not None]


def _sum_known(rows: Iterable[RpcRow], name: str) -> int | None:
    known = _known(rows, name)
    return sum(known) if known else None


def _median(values: Sequence[int]) -> int | None:
    return round(median(values)) if values else None


@dataclass(frozen=True, slots=True)
class Waited:
    """How long one step of a rank waited for one thing; those of a step add up to its `rpc_wait_ns`."""

    step: int
    target: Target
    ns: int


def waited_for(view: RankView) -> tuple[Waited, ...]:
    """In order of steps; nothing for a rank that has none."""
    sums: Counter[tuple[int, Target]] = Counter()
    for step, target, ns in _stretches(view):
        sums[view.rank.steps[step].ordinal, target] += ns
    return tuple(Waited(step, target, ns) for (step, target), ns in sums.items())


def _stretches(view: RankView) -> Iterator[tuple[int, Target, int]]:
    """Cut where steps and phases begin and end: position of the step, what for, how long."""
    idle = remote_idle(view)
    if not len(idle) or not view.rank.steps:
        return
    _, begins, ends = view.windows.split(idle[:, 0], idle[:, 1])
    _, begins, ends = view.phases.split(begins, ends)
    steps, phases = view.windows.at(begins).tolist(), view.phases.at(begins).tolist()
    awaited = _awaited(view.rank.rpc.calls, begins, ends)
    for step, phase, target, ns in zip(steps, phases, awaited, (ends - begins).tolist(), strict=True):
        if step >= 0:
            yield step, BACKWARD if phase == Phase.BACKWARD else target, ns


def _awaited(calls: Iterable[RpcCall], begins: Ints, ends: Ints) -> Iterator[Target]:
    """Of each stretch the call that was under way longest in it, of several alike the one that was done first."""
    ahead = sorted((call for call in calls if not call.is_internal), key=attrgetter("begin_at_ns"), reverse=True)
    running: list[RpcCall] = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        while ahead and ahead[-1].begin_at_ns < end:
            running.append(ahead.pop())
        running = [call for call in running if call.done_at_ns is None or call.done_at_ns > begin]
        yield _longest(running, begin, end)


def _longest(calls: Sequence[RpcCall], begin: int, end: int) -> Target:
    def overlap(call: RpcCall) -> tuple[int, int]:
        done = NEVER if call.done_at_ns is None else call.done_at_ns
        return min(done, end) - max(call.begin_at_ns, begin), -done

    one = max(calls, key=overlap, default=None)
    return UNKNOWN if one is None else (one.function, one.callee)
