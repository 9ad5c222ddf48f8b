"""Remote calls in short, for a reader: those of one function at one worker are taken together, whoever made them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ddptrace.analysis.tables.rpc import RpcRow

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
        function, callee, len(rows), sum(row.failed for row in rows), _median(calls), max(calls, default=None),
        len(runs), _median(runs), _median(rests), sum(calls), gives_future,
    )  # fmt: skip


def _median(values: Sequence[int]) -> int | None:
    return round(median(values)) if values else None


def calls_in(rows: Iterable[RpcRow], steps: Iterable[tuple[int, int]]) -> list[RpcRow]:
    """Select the program's calls that callers issued in these (rank, step) pairs."""
    wanted = set(steps)
    return [row for row in own_calls(rows) if (row.rank, row.step) in wanted]


def function_word(name: str) -> str:
    """A function as its program names it: TorchScript puts a module path of its own before that."""
    return name.rpartition(".")[2] if name.startswith(TORCHSCRIPT) else name
