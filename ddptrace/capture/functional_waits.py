"""Who waits for a functional collective (DTensor, tensor parallelism, compiled code): there the Work stays in C++, and
the program waits for the tensor that it is given.

    all_reduce(x) ──▶ tensor ┄┄┄ wait_tensor(tensor) ┄┄┄┐
                    made                     take ─▶ the call
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ddptrace.capture.tap import Op

MOST_TENSORS: Final = 10_000
"""Made and not waited for; a program that never waits must not fill the memory."""

ISSUER: Final = torch._ops.__file__
"""The file of the frame that issues a functional collective: an operator was called, not a function of
torch.distributed."""


class FunctionalWaits:
    """Which call made the tensors that nobody has waited for yet, by where their data lies."""

    def __init__(self) -> None:
        self._seq_of: dict[int, int] = {}

    def made(self, op: Op, args: tuple[Any, ...], seq: int) -> None:
        if len(self._seq_of) >= MOST_TENSORS:
            self._seq_of.clear()
        for i in op.outputs or op.inputs:
            for tensor in [args[i]] if isinstance(args[i], torch.Tensor) else args[i]:
                self._seq_of[tensor.data_ptr()] = seq

    def take(self, tensor: torch.Tensor) -> int:
        """The seq of the call that made it; 0 where none did, or somebody has waited before."""
        return self._seq_of.pop(tensor.data_ptr(), 0)
