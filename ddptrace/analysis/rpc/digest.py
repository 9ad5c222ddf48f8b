"""Remote calls in short, for a reader: bytes per step of their caller by pair of workers and kind of call; and times by
function at one worker, whoever called it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from statistics import median
from typing import Final

from ddptrace.analysis.tables.traffic import RpcRow

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
        *key,
        steps,
        len(rows) / (steps or 1),
        out,
        back,
        gradient_out or 0,
        gradient_back or 0,
        any(row.gradient_inferred for row in rows),
        min(apart),
        max(apart),
    )


def _mean(rows: Iterable[RpcRow], name: str, steps: int) -> int | None:
    known = [nbytes for nbytes in (getattr(row, name) for row in rows) if nbytes is not None]
    return round(sum(known) / steps) if known else None


def _all(pair: RpcDigest) -> int:
    return (pair.nbytes_out or 0) + (pair.nbytes_back or 0) + pair.gradient_nbytes_out + pair.gradient_nbytes_back


# By function ----------------------------------------------------------------------------------------------------------


TORCHSCRIPT: Final = "__torch__."


@dataclass(frozen=True, slots=True)
class RpcFunction:
    """Times are medians over the calls of which they are known, None where there is none: the first call may take a
    hundred times as long as the others. `rest_ns` is what is left of a call without its run: the wire, and the queue at
    the callee; None for a function that gives a future."""

    function: str
    callee: str | None
    calls: int
    failed: int
    call_ns: int | None
    call_max_ns: int | None
    runs: int  # seen at the callee
    run_ns: int | None
    rest_ns: int | None
    all_ns: int  # of all its calls together
    gives_future: bool


def own_calls(rows: Iterable[RpcRow]) -> list[RpcRow]:
    """Those that the program made: not torch's own, and not those of which only the callee tells."""
    return [row for row in rows if row.op is not None and not row.internal]


def rpc_functions(rows: Iterable[RpcRow]) -> list[RpcFunction]:
    """The longest together first; without torch's own calls."""
    alike: defaultdict[tuple[str, str | None], list[RpcRow]] = defaultdict(list)
    for row in rows:
        if not row.internal:
            alike[row.function, row.callee].append(row)
    found = [_function(*key, same) for key, same in alike.items()]
    return sorted(found, key=lambda one: (-one.all_ns, -one.calls, one.function, one.callee or ""))


def _function(function: str, callee: str | None, rows: Sequence[RpcRow]) -> RpcFunction:
    calls = [row.call_ns for row in rows if row.call_ns is not None]
    runs = [row.run_ns for row in rows if row.run_ns is not None]
    gives_future = any(row.gives_future for row in rows)
    whole = () if gives_future else rows
    rests = [row.call_ns - row.run_ns for row in whole if row.call_ns is not None and row.run_ns is not None]
    return RpcFunction(
        function,
        callee,
        len(rows),
        sum(row.failed for row in rows),
        _median(calls),
        max(calls, default=None),
        len(runs),
        _median(runs),
        _median(rests),
        sum(calls),
        gives_future,
    )


def _median(values: Sequence[int]) -> int | None:
    return round(median(values)) if values else None


def calls_in(rows: Iterable[RpcRow], steps: Iterable[tuple[int, int]]) -> list[RpcRow]:
    """Select the program's calls that callers issued in these (rank, step) pairs."""
    wanted = set(steps)
    return [row for row in own_calls(rows) if (row.rank, row.step) in wanted]


def function_word(name: str) -> str:
    """A function as its program names it: TorchScript puts a module path of its own before that."""
    return name.rpartition(".")[2] if name.startswith(TORCHSCRIPT) else name
