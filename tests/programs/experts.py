"""Two ranks with one expert each, whose router sends rank 1 three times as many tokens. `experts.py OUT`.

Leaves the runs `uneven` and, with a router that sends both as many, `even`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import ddptrace
from tests.programs.leaving import leave

STEPS, TOKENS, WIDTH, MS_PER_TOKEN = 5, 8, 16, 2.0


class Exchange(torch.autograd.Function):
    """Sends rows to where the split says; in backward their gradients come back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, there: list[int], back: list[int]) -> torch.Tensor:
        ctx.splits = back, there
        return exchanged(rows, there, back)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return exchanged(gradient.contiguous(), *ctx.splits), None, None


def exchanged(rows: torch.Tensor, there: list[int], back: list[int]) -> torch.Tensor:
    received = rows.new_empty(sum(back), rows.shape[1])
    dist.all_to_all_single(received, rows, back, there)
    return received


class Moe(nn.Module):
    def __init__(self, to_last: int) -> None:
        """`to_last`: tokens of each rank that go to rank 1."""
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)
        self.to_last = to_last

    def forward(self, tokens: torch.Tensor) -> Any:
        there = [TOKENS - self.to_last, self.to_last]
        back = [there[dist.get_rank()]] * 2
        mine = Exchange.apply(tokens, there, back)
        time.sleep(MS_PER_TOKEN * len(mine) / 1e3)
        return Exchange.apply(self.expert(mine), back, there)


def train(out: Path, to_last: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Moe(to_last))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddptrace.trace(out):
        for _ in range(STEPS):
            model(torch.ones(TOKENS, WIDTH)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def main(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(out / "uneven", 6)
    train(out / "even", TOKENS // 2)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
