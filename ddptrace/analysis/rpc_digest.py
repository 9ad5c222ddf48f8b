"""Bytes of remote calls per step of their caller, by pair of workers and kind of call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from ddptrace.analysis.tables import RpcRow

BYTES = ("nbytes_out", "nbytes_back", "gradient_nbytes_out", "gradient_nbytes_back")

RankStep = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RpcDigest:
    """Remote calls of one kind between two workers: means per step of the caller; where it has no steps, sums over the
    run. What was not measured is left out."""

    caller: str | None  # name of the worker that called
    callee: str | None  # name of the worker that ran them
    op: str | None  # as in `rpcs`
    steps: int  # steps of the caller; 0: these are sums over the run
    calls: float  # number of calls
    nbytes_out: int | None  # from caller to callee; None where none was measured
    nbytes_back: int | None  # from callee to caller; None where none was measured
    gradient_nbytes_out: int  # gradients of results, caller to callee
    gradient_nbytes_back: int  # gradients of arguments, callee to caller
    gradient_inferred: bool  # the size of some gradients is that of their arguments
    nbytes_min: int  # of all four together, least in one step
    nbytes_max: int  # of all four together, most in one step


def rpc_traffic(rows: Iterable[RpcRow], counted: Set[RankStep]) -> tuple[RpcDigest, ...]:
    """Of the (rank, step) pairs `counted`, and of callers that have none; without torch's own calls. The most bytes
    first."""
    ranks = {rank for rank, _ in counted}
    pairs: defaultdict[tuple[str | None, str | None, str | None], list[RpcRow]] = defaultdict(list)
    for row in rows:
        if not row.internal and (row.rank not in ranks or (row.rank, row.step) in counted):
            pairs[row.caller, row.callee, row.op].append(row)
    found = [_pair(key, alike, counted) for key, alike in pairs.items()]
    return tuple(sorted(found, key=lambda one: (-_all(one), one.caller or "", one.callee or "", one.op or "")))


def _pair(key: tuple[str | None, str | None, str | None], rows: Sequence[RpcRow], counted: Set[RankStep]) -> RpcDigest:
    callers = {row.rank for row in rows}
    per_step = {one: 0 for one in counted if one[0] in callers}
    for row in rows:
        if row.rank is not None and row.step is not None and (row.rank, row.step) in per_step:
            per_step[row.rank, row.step] += sum(getattr(row, name) or 0 for name in BYTES)
    steps = len(per_step)
    out, back, gradient_out, gradient_back = (_mean(rows, name, steps or 1) for name in BYTES)
    apart = per_step.values() or (sum(nbytes or 0 for nbytes in (out, back, gradient_out, gradient_back)),)
    return RpcDigest(
        *key, steps, len(rows) / (steps or 1), out, back, gradient_out or 0, gradient_back or 0,
        any(row.gradient_inferred for row in rows), min(apart), max(apart),
    )  # fmt: skip


def _mean(rows: Iterable[RpcRow], name: str, steps: int) -> int | None:
    known = [nbytes for nbytes in (getattr(row, name) for row in rows) if nbytes is not None]
    return round(sum(known) / steps) if known else None


def _all(one: RpcDigest) -> int:
    return (one.nbytes_out or 0) + (one.nbytes_back or 0) + one.gradient_nbytes_out + one.gradient_nbytes_back
