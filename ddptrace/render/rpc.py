"""Remote calls in the report and in the trace.

In: `rpcs` and `rpc_pairs` of a `Result`. Out: a section of tables, and in the trace the calls of a rank, the runs that
it did for others, and an arrow from each call to its run:

rank 0  remote calls | rpc_sync forward → worker1 · 4.19 MB      |
                      └──▶
rank 1  remote runs        | forward for worker0 |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import RpcFunction, function_word, rpc_functions
from ddptrace.analysis.tables.traffic import RpcPairRow, RpcRow
from ddptrace.render.markup import label, section, table, text
from ddptrace.render.rpc_words import failed_calls, pair_name, pairs_by_bytes
from ddptrace.render.trace.slices import Slice, Track, lay_out, measured
from ddptrace.units import NOT_MEASURED, millis, size

ROWS_MAX: Final = 40
SUB: Final = (
    "Who calls whom, and where the time of a call goes: the call without the run at the callee is the wire and the"
    " queue there. Bytes count payloads and tensors; gradients count what distributed autograd sends for them."
    " Times are medians: of calls over all calls, of runs over the runs recorded at the callee."
)
FUNCTIONS_TITLE: Final = "<h3>Functions</h3><p class='sub'>Those that took longest together first.</p>"
FAILURES_TITLE: Final = "<h3>Failed calls</h3>"

PAIR_HEADS: Final = (
    ("caller → callee", "words"), ("op", ""), ("calls", ""), ("failed", ""), ("out", ""), ("back", ""),
    ("gradients out", ""), ("gradients back", ""), ("median call ms", ""), ("runs seen", ""), ("median run ms", ""),
)  # fmt: skip
FUNCTION_HEADS: Final = (
    ("function", "words"), ("at", "words"), ("calls", ""), ("median call ms", ""), ("longest ms", ""),
    ("runs seen", ""), ("median run ms", ""), ("wire and queue ms", ""),
)  # fmt: skip
FAILURE_HEADS: Final = (("call", "words"), ("error", "words"), ("times", ""))

COLUMNS: Final = tuple(entry.name for entry in fields(RpcRow))
VALUES: Final = attrgetter(*COLUMNS)


def rpc_section(result: Result) -> str:
    pairs = pairs_by_bytes(result)
    if not pairs:
        return ""
    functions, failures = rpc_functions(result.rpcs), failed_calls(result)
    most = f" The {ROWS_MAX} pairs with the most bytes of {len(pairs):,}." if len(pairs) > ROWS_MAX else ""
    parts = [table(PAIR_HEADS, map(pair_cells, pairs[:ROWS_MAX]))]
    parts += [FUNCTIONS_TITLE, table(FUNCTION_HEADS, map(function_cells, functions[:ROWS_MAX]))]
    if failures:
        cells = ([label(told), text(error), f"{count:,}"] for (told, error), count in failures[:ROWS_MAX])
        parts += [FAILURES_TITLE, table(FAILURE_HEADS, cells)]
    return section("Remote calls", SUB + most, *parts)


def pair_cells(pair: RpcPairRow) -> list[str]:
    """Of a caller that was not traced neither the kind of its calls nor their ends are known."""
    return [
        label(pair_name(pair)),
        label(pair.op or NOT_MEASURED),
        f"{pair.calls:,}",
        f"{pair.failed:,}",
        size(pair.nbytes_out),
        size(pair.nbytes_back if pair.op else None),
        size(pair.gradient_nbytes_out),
        size(pair.gradient_nbytes_back),
        millis(pair.call_median_ns),
        f"{pair.runs:,}",
        millis(pair.run_median_ns),
    ]


def function_cells(function: RpcFunction) -> list[str]:
    return [
        f"<code>{label(function_word(function.function))}</code>",
        label(function.callee or "?"),
        f"{function.calls:,}",
        millis(function.call_ns),
        millis(function.call_max_ns),
        f"{function.runs:,}",
        millis(function.run_ns),
        millis(function.rest_ns),
    ]


class Numbered(NamedTuple):
    """A row and the number of its arrow, which both its ranks must know."""

    arrow: int
    row: RpcRow


def rpc_tracks(calls: Sequence[Numbered], runs: Sequence[Numbered]) -> Iterator[Track]:
    """`calls` are those that a rank made, `runs` those that it served."""
    yield from lay_out(
        "remote calls", [(_call_slice(numbered),) for numbered in calls if numbered.row.launch_at_ns is not None]
    )
    yield from lay_out(
        "remote runs", [(_run_slice(numbered),) for numbered in runs if numbered.row.run_start_at_ns is not None]
    )


def _call_slice(numbered: Numbered) -> Slice:
    """Until its result was there; where none was seen, until the host could go on."""
    row = numbered.row
    begin = row.launch_at_ns or 0
    end = next((at for at in (row.done_at_ns, row.issued_at_ns) if at is not None), begin)
    sized = "" if row.nbytes_out is None else f" · {size(row.nbytes_out)}"
    name = f"{row.op} {row.function} → {row.callee}{sized}"
    return Slice(name, "rpc", begin, end, measured(_columns(row)), _colour(row), *_arrow(numbered, "s"))


def _run_slice(numbered: Numbered) -> Slice:
    row = numbered.row
    begin, end = row.run_start_at_ns or 0, row.run_end_at_ns or 0
    name = f"{row.function} for {row.caller or 'an untraced worker'}"
    return Slice(name, "rpc.run", begin, end, measured(_columns(row)), _colour(row), *_arrow(numbered, "f"))


def _arrow(numbered: Numbered, phase: str) -> tuple[int, str]:
    """The arrow's number and which end this is; (0, "") where one of its ends was not seen."""
    whole = numbered.row.launch_at_ns is not None and numbered.row.run_start_at_ns is not None
    return (numbered.arrow, phase) if whole else (0, "")


def _colour(row: RpcRow) -> str:
    return "terrible" if row.failed else "grey" if row.internal else "rail_response"


def _columns(row: RpcRow) -> Iterator[tuple[str, Any]]:
    return zip(COLUMNS, VALUES(row), strict=True)
