"""What the library sends."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def mean(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)  # mean
    return tensor / dist.get_world_size()


class Shared(torch.autograd.Function):
    """The identity; its gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)  # in backward
        return gradient
