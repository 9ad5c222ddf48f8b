"""Buckets: plans which gradients share one and in which order they are sent, and holds each as a flat tensor with
views into it.

    buffer    | w2 . . . . . . . | b2 . | w1 . . . . . . . . . . . |
    views       views[0] (8,2)    [1] (3)  views[2] (5,5)              the shape and strides of each parameter

With gradients as views `parameter.grad` becomes the view itself: what the others sent is there without copying back.

The plan is arithmetic, without tensors. Gradients become ready from the last layer to the first, so parameters are
taken in that order. A bucket is closed by the gradient that makes it reach its cap; none is split. The first cap is
small: communication starts early in backward.

    parameters       0      1   2        3    4    5          forward  -->
    taken as         5    4    3  |   2    1   |   0          <--  backward
    buckets         [    0       ][     1     ][   2   ]      caps: first, then the last one again and again

A bucket is one flat tensor, so it holds one kind (dtype and device). Kinds fill side by side, each through all caps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from ddptrace.errors import DdptraceError

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Divisor:
    """The number of ranks, as tensors: a Python number would be made into one for every single gradient."""

    ranks: Tensor  # int64, 0-dimensional, on the host: so a gradient keeps its dtype, on any device
    inverse: Tensor  # float64, as above; rounded to the dtype where it is used

    @classmethod
    def of(cls, ranks: int) -> Divisor:
        return cls(torch.tensor(ranks, device="cpu"), torch.tensor(1.0 / ranks, dtype=torch.float64, device="cpu"))


@dataclass(frozen=True, slots=True)
class Change:
    """A parameter that no longer fits its bucket: its index, and in words what it is now and what it was."""

    index: int
    now: str
    before: str


class Bucket:
    """The gradients that one collective reduces. `pending`: how many of them are still to come in this backward."""

    __slots__ = (
        "_places",
        "buffer",
        "index",
        "indices",
        "is_skipped",
        "kinds",
        "name",
        "on_wire",
        "parameters",
        "pending",
        "sent",
        "views",
    )

    def __init__(self, index: int, indices: Sequence[int], parameters: Sequence[Parameter]) -> None:
        """`indices`: the parameters' numbers in their reducer; all are of one dtype and on one device."""
        self.index, self.name = index, f"bucket {index}"
        self.indices = tuple(indices)
        self.parameters = tuple(parameters)
        numel = sum(parameter.numel() for parameter in parameters)
        self.buffer = torch.zeros(numel, dtype=parameters[0].dtype, device=parameters[0].device)
        self.on_wire = torch.view_as_real(self.buffer) if self.buffer.is_complex() else self.buffer
        self.view_anew()
        self.pending = len(self.parameters)
        self.is_skipped = False
        self.sent: object = None  # the Work or future to wait for, while the bucket is on its way

    @property
    def nbytes(self) -> int:
        return self.buffer.numel() * self.buffer.element_size()

    def views_of(self, flat: Tensor) -> list[Tensor]:
        """Return for each parameter its part of a flat tensor that is laid out like the bucket."""
        return list(_views(flat, self.parameters))

    def view_anew(self) -> None:
        """Make the views, and note their addresses and the dtype, device and shape of their parameters."""
        self.views = self.views_of(self.buffer)
        places = zip(self.parameters, self.views, strict=True)
        self._places = dict(zip(self.indices, places, strict=True))
        self.kinds = [
            (parameter.dtype, parameter.device, parameter.shape, view.data_ptr())
            for parameter, view in zip(self.parameters, self.views, strict=True)
        ]

    def change(self) -> Change | None:
        """Return the first parameter that has changed, None if none has."""
        for index, parameter, (*before, _) in zip(self.indices, self.parameters, self.kinds, strict=True):
            now = [parameter.dtype, parameter.device, parameter.shape]
            if now != before:
                return Change(index, _worded(now), _worded(before))
        return None

    def reset(self) -> None:
        self.pending, self.is_skipped, self.sent = len(self.parameters), False, None

    def fill(self, index: int, divisor: Divisor | None, as_view: bool) -> None:
        """Put a parameter's gradient into the buffer, divided by the ranks (None: as it is; a hook divides).

        No gradient counts as zeros. The same operations as in torch's reducer, so that the bits are the same.
        """
        parameter, view = self._places[index]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        elif gradient is view:
            if divisor is not None:
                view.div_(divisor.ranks)
        else:
            if divisor is None:
                view.copy_(gradient)
            else:
                torch.mul(gradient, divisor.inverse, out=view)
            if as_view:
                parameter.grad = view

    def take(self, result: Tensor) -> None:
        """Put what a hook returned into the buffer, unless it is there already."""
        if result.data_ptr() != self.buffer.data_ptr():
            self.buffer.copy_(result.reshape(-1))

    def hand_back(self, untouched: frozenset[int], *, as_view: bool) -> None:
        """Give each parameter its reduced gradient; those in `untouched`, which no rank used, keep theirs."""
        for index, parameter, view in zip(self.indices, self.parameters, self.views, strict=True):
            if parameter.grad is view or index in untouched:
                continue
            if as_view:
                parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = view.clone()
            else:
                parameter.grad.copy_(view)


def _worded(kind: Sequence[Any]) -> str:
    dtype, device, shape = kind
    return f"{str(dtype).removeprefix('torch.')} of shape {tuple(shape)} on {device}"


def _views(flat: Tensor, parameters: Sequence[Parameter]) -> Iterator[Tensor]:
    offset = 0
    for parameter in parameters:
        # autograd gives a gradient a dense parameter's strides and makes it contiguous otherwise; empty_like does too
        strides = torch.empty_like(parameter, device="meta").stride()
        yield flat.as_strided(parameter.shape, strides, offset)
        offset += parameter.numel()


@dataclass(slots=True)
class _Filling:
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
    filling: dict[Hashable, _Filling] = {}
    for index in order:
        bucket = filling.setdefault(kinds[index], _Filling())
        bucket.members.append(index)
        bucket.nbytes += nbytes[index]
        if bucket.nbytes >= caps_nbytes[min(bucket.closed, len(caps_nbytes) - 1)]:
            buckets.append(bucket.members)
            filling[kinds[index]] = _Filling(closed=bucket.closed + 1)
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
