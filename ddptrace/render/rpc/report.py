"""The report's section of remote calls, as HTML: every name is escaped where it enters."""

from __future__ import annotations

from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import RpcFunction, function_word, rpc_functions
from ddptrace.analysis.tables.rpc import RpcPairRow
from ddptrace.render.markup import label, section, table, text
from ddptrace.render.rpc.words import failed_calls, pair_name, pairs_by_bytes
from ddptrace.units import NOT_MEASURED, millis, size

ROWS_MAX: Final = 40
SUB: Final = (
    "Who calls whom, and where the time of a call goes: the call without the run at the callee is the wire and the"
    " queue there. Bytes count payloads and tensors; gradients count what distributed autograd sends for them."
    " Times are medians: of calls over all calls, of runs over the runs recorded at the callee."
)
FUNCTIONS: Final = "<h3>Functions</h3><p class='sub'>Those that took longest together first.</p>"
FAILURES: Final = "<h3>Failed calls</h3>"

PAIR_HEADS: Final = (
    ("caller → callee", "words"), ("op", ""), ("calls", ""), ("failed", ""), ("out", ""), ("back", ""),
    ("gradients out", ""), ("gradients back", ""), ("median call ms", ""), ("runs seen", ""), ("median run ms", ""),
)  # fmt: skip
FUNCTION_HEADS: Final = (
    ("function", "words"), ("at", "words"), ("calls", ""), ("median call ms", ""), ("longest ms", ""),
    ("runs seen", ""), ("median run ms", ""), ("wire and queue ms", ""),
)  # fmt: skip
FAILURE_HEADS: Final = (("call", "words"), ("error", "words"), ("times", ""))


def rpc_section(result: Result) -> str:
    pairs = pairs_by_bytes(result)
    if not pairs:
        return ""
    functions, failures = rpc_functions(result.rpcs), failed_calls(result)
    most = f" The {ROWS_MAX} pairs with the most bytes of {len(pairs):,}." if len(pairs) > ROWS_MAX else ""
    parts = [table(PAIR_HEADS, map(pair_cells, pairs[:ROWS_MAX]))]
    parts += [FUNCTIONS, table(FUNCTION_HEADS, map(function_cells, functions[:ROWS_MAX]))]
    if failures:
        cells = ([label(told), text(error), f"{count:,}"] for (told, error), count in failures[:ROWS_MAX])
        parts += [FAILURES, table(FAILURE_HEADS, cells)]
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
