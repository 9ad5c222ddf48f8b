"""Which gradients would share a bucket: as DDP plans anew after its first step, in the order in which gradients become
ready. A bucket is closed by the gradient that makes it reach its cap; none is split, and each holds one dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddptrace.load.tables import Parameter

MIB: Final = 1024 * 1024

Buckets = tuple[tuple[int, ...], ...]


def plan_buckets(order: Sequence[int], parameters: Sequence[Parameter], caps_nbytes: Sequence[int]) -> Buckets:
    """Parameter numbers by bucket, in launch order. `order`: as they become ready. The last cap repeats; each dtype
    goes through all caps. What is never full is sent last."""
    closed: list[tuple[int, ...]] = []
    filling: dict[str, list[int]] = {}
    nth: dict[str, int] = {}
    for number in order:
        dtype = parameters[number].dtype
        members = filling.setdefault(dtype, [])
        members.append(number)
        cap = caps_nbytes[min(nth.get(dtype, 0), len(caps_nbytes) - 1)]
        if sum(parameters[member].nbytes for member in members) >= cap:
            closed.append(tuple(filling.pop(dtype)))
            nth[dtype] = nth.get(dtype, 0) + 1
    return (*closed, *(tuple(members) for members in filling.values()))


def caps_nbytes(caps_mb: Sequence[float]) -> tuple[int, ...]:
    """Of caps in MiB, as DDP takes them."""
    return tuple(max(1, int(min(cap, 2**40) * MIB)) for cap in caps_mb)
