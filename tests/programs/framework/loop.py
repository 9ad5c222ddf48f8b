"""The library's training loop. A program calls `fit`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from framework.sync import Shared, mean

STEPS = 3


def fit(model: nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        loss = loss_of(Shared.apply(model(torch.ones(4, 8))))
        backward(loss)
        for parameter in model.parameters():
            parameter.grad = mean(parameter.grad)  # gradients
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()  # the end


def backward(loss: torch.Tensor) -> None:
    loss.backward()
