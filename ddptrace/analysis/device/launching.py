"""What gives the host less to launch, by what the program does already."""

from __future__ import annotations

from ddptrace.analysis.device.names import is_compiled
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.parallelism import Kind


def less_to_launch(result: Result) -> str:
    """As in "torch.compile, CUDA graphs, larger batches". A model that is served has no optimizer, and one that is
    compiled is not told to be."""
    is_served = any(row.kind == Kind.INFERENCE for row in result.parallelism)
    names = {row.name for row in result.idle} | {row.operator for row in result.idle}  # few, of many rows
    compiled = any(map(is_compiled, names))
    ways = [
        'CUDA graphs (torch.compile with mode="reduce-overhead")' if compiled else "torch.compile, CUDA graphs",
        *([] if is_served else ["fused optimizers"]),
        "larger batches",
    ]
    return ", ".join(ways)
