"""Tensor parallelism: communication that is exposed by nature, and by order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.ranks.matched_time import WAITING_MIN_RATIO, matched_time
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary
from ddptrace.analysis.units.tensor import TensorCost, tensor_cost
from ddptrace.findings import TENSOR_EXPOSED, Finding
from ddptrace.units import duration, percent

COST_MIN_RATIO: Final = 0.05
"""Of the step."""
BY_NATURE: Final = (
    "No order of the program hides that: send less or faster (shard over fewer ranks or a faster link, divide the"
    " sequence as well), or overlap each with its matrix product (async tensor parallelism)."
)
BY_ORDER: Final = "Launch these earlier, or compute more between the launch and the use of the result."


def tensor_findings(result: Result, summary: Summary) -> Iterator[Finding]:
    """Name what helps, unless communication is long as ranks are late."""
    matched, cost, exposed = matched_time(result), tensor_cost(result), summary.part("exposed_comm")
    if result.suspects or (matched is not None and matched.waiting_ratio >= WAITING_MIN_RATIO):
        return
    if cost is None or exposed is None or not summary.window_ns:
        return
    if cost.exposed_ns >= COST_MIN_RATIO * summary.window_ns and 2 * cost.exposed_ns >= exposed.ns:
        yield TENSOR_EXPOSED("run", _words(cost, summary.window_ns))


def _words(cost: TensorCost, window_ns: int) -> str:
    module, phase = cost.worst
    exposed = (
        f"The step waits {duration(cost.exposed_ns)} ({percent(cost.exposed_ns / window_ns)}) for tensor parallelism,"
        f" longest for {module}{f' in {phase}' if phase else ''}."
    )
    nature = f" {duration(cost.by_nature_ns)} are exposed by nature: the next operator needs the result at once."
    order = f" {duration(cost.by_order_ns)} are exposed by order: what computes meanwhile is shorter than the transfer."
    parts = [(cost.by_nature_ns, nature, BY_NATURE), (cost.by_order_ns, order, BY_ORDER)]
    told = [part for part in parts if part[0] >= COST_MIN_RATIO * cost.exposed_ns]
    return exposed + "".join(f"{words} {advice}" for _, words, advice in sorted(told, key=lambda part: -part[0]))
