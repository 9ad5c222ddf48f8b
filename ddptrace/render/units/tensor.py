"""What the terminal says of tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from ddptrace.analysis.result import Result
from ddptrace.analysis.units.tensor import tensor_cost
from ddptrace.units import duration


def tensor_lines(result: Result) -> Iterator[str]:
    """Nothing where nothing tells when the results of tensor-parallel modules are needed."""
    cost = tensor_cost(result)
    if cost is not None:
        yield f"Tensor parallelism  {duration(cost.exposed_ns)} of a step exposed"
        yield f"  by nature, the next operator needs the result at once   {duration(cost.by_nature_ns):>9}"
        yield f"  by order, what computes meanwhile is too short          {duration(cost.by_order_ns):>9}"
