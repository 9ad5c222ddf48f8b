"""Which gradients share a bucket, and in which order buckets are sent: arithmetic, no tensors.

Gradients become ready from the last layer to the first, so parameters are taken in that order. A bucket is closed by
the gradient that makes it reach its cap; none is split. The first cap is small: communication starts early in backward.

    parameters       0      1   2        3    4    5          forward  -->
    taken as         5    4    3  |   2    1   |   0          <--  backward
    buckets         [    0       ][     1     ][   2   ]      caps: first, then the last one again and again

A bucket is one flat tensor, so it holds one kind (dtype and device). Kinds fill side by side, each through all caps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ddptrace.errors import DdptraceError

MIB = 1024 * 1024


@dataclass(slots=True)
class _Open:
    """The bucket that is being filled, of one kind, and how many of that kind are closed."""

    members: list[int] = field(default_factory=list)
    nbytes: int = 0
    closed: int = 0


def plan_buckets(
    order: Sequence[int], nbytes: Sequence[int], kinds: Sequence[Hashable], caps_nbytes: Sequence[int]
) -> list[list[int]]:
    """Return buckets of parameter indices, in the order in which they are sent.

    `order`: parameter indices as their gradients become ready. `nbytes` and `kinds` are looked up by parameter index.
    `caps_nbytes`: the cap of the first bucket of a kind, of its second, ...; the last one repeats.
    A bucket is ready with its last member, and that is what the buckets are sorted by.
    """
    buckets: list[list[int]] = []
    filling: dict[Hashable, _Open] = {}
    for index in order:
        bucket = filling.setdefault(kinds[index], _Open())
        bucket.members.append(index)
        bucket.nbytes += nbytes[index]
        if bucket.nbytes >= caps_nbytes[min(bucket.closed, len(caps_nbytes) - 1)]:
            buckets.append(bucket.members)
            filling[kinds[index]] = _Open(closed=bucket.closed + 1)
    buckets += [bucket.members for bucket in filling.values() if bucket.members]
    position = {index: at for at, index in enumerate(order)}
    return sorted(buckets, key=lambda members: position[members[-1]])


def bucket_caps(
    bucket_cap_mb: float, first_bucket_mb: float, bucket_caps_mb: Sequence[float] | None = None
) -> list[int]:
    """Return caps in bytes, from a user's caps in MiB; the first is never larger than the others.

    Raises DdptraceError for an empty list, or a cap that is not above zero.
    """
    asked = [first_bucket_mb, bucket_cap_mb] if bucket_caps_mb is None else list(bucket_caps_mb)
    if not asked or not all(is_above_zero(cap) for cap in asked):
        raise DdptraceError(
            f"Bucket caps are MiB above zero, and there is at least one: {asked} is not; mend the caps."
        )
    if bucket_caps_mb is None:
        asked[0] = min(asked)
    return [max(1, int(min(cap, 2**40) * MIB)) for cap in asked]


def is_above_zero(value: object) -> bool:
    return isinstance(value, int | float) and value > 0
