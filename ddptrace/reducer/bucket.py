"""One bucket: a flat tensor that is sent as a whole, and for each of its parameters a view into it.

    buffer    | w2 . . . . . . . | b2 . | w1 . . . . . . . . . . . |
    views       views[0] (8,2)    [1] (3)  views[2] (5,5)              the shape and strides of each parameter

With gradients as views `parameter.grad` becomes the view itself: what the others sent is there without copying back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter


class Bucket:
    """The gradients that one collective reduces. `pending`: how many of them this backward still has to bring."""

    __slots__ = ("buffer", "index", "indices", "is_skipped", "parameters", "pending", "sent", "slots", "views")

    def __init__(self, index: int, indices: Sequence[int], parameters: Sequence[Parameter]) -> None:
        """`indices`: the parameters' numbers in their reducer; all are of one dtype and on one device."""
        self.index = index
        self.indices = tuple(indices)
        self.parameters = tuple(parameters)
        self.slots = {number: slot for slot, number in enumerate(indices)}
        numel = sum(parameter.numel() for parameter in parameters)
        self.buffer = torch.zeros(numel, dtype=parameters[0].dtype, device=parameters[0].device)
        self.views = self.views_of(self.buffer)
        self.pending = len(self.parameters)
        self.is_skipped = False
        self.sent: object = None  # what to wait for, while it is on its way

    @property
    def nbytes(self) -> int:
        return self.buffer.numel() * self.buffer.element_size()

    def views_of(self, flat: Tensor) -> list[Tensor]:
        """For each parameter its part of a flat tensor that is laid out as the bucket is."""
        return list(_views(flat, self.parameters))

    def reset(self) -> None:
        self.pending, self.is_skipped, self.sent = len(self.parameters), False, None

    def fill(self, index: int, ranks: int | None, as_view: bool) -> None:
        """Put a parameter's gradient into the buffer, divided by `ranks` (None: as it is; a hook divides).

        No gradient counts as zeros. The same operations as in torch's reducer, so that the bits are the same.
        """
        slot = self.slots[index]
        parameter, view = self.parameters[slot], self.views[slot]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        elif gradient is view:
            if ranks is not None:
                view.div_(ranks)
        else:
            if ranks is None:
                view.copy_(gradient)
            else:
                torch.mul(gradient, 1.0 / ranks, out=view)
            if as_view:
                parameter.grad = view

    def take(self, result: Tensor) -> None:
        """Put what a hook returned into the buffer, where it is not there already."""
        if result.data_ptr() != self.buffer.data_ptr():
            self.buffer.copy_(result.reshape(-1))

    def hand_back(self, untouched: frozenset[int], *, as_view: bool) -> None:
        """Give each parameter its reduced gradient; those in `untouched`, which no rank used, keep what they have."""
        for index, parameter, view in zip(self.indices, self.parameters, self.views, strict=True):
            if parameter.grad is view or index in untouched:
                continue
            if as_view:
                parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = view.clone()
            else:
                parameter.grad.copy_(view)


def _views(flat: Tensor, parameters: Sequence[Parameter]) -> Iterator[Tensor]:
    offset = 0
    for parameter in parameters:
        # autograd gives a gradient a dense parameter's strides and makes it contiguous otherwise; empty_like does too
        strides = torch.empty_like(parameter, device="meta").stride()
        yield flat.as_strided(parameter.shape, strides, offset)
        offset += parameter.numel()
