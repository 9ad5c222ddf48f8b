"""Trains with stock DDP, with every rung of the ladder and with our reducer, from the same values. `ladder_bits.py OUT`

Saves, for each, every gradient after every backward and the final parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from ddptrace.bench.strategies import Strategy, bucketed, flat, naive, overlap, stock_ddp
from ddptrace.bench.workloads import Gpt
from tests.programs.leaving import leave

STEPS, CAP_MB = 3, 0.02


def train(strategy: Strategy) -> Iterator[Tensor]:
    torch.manual_seed(1 + dist.get_rank())  # ranks begin apart: every strategy makes them equal
    wrapped = strategy.wrap(Gpt(layers=2, width=32, heads=2, context=8))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(STEPS):
        wrapped(torch.randint(256, (4, 8)), torch.randint(256, (4, 8))).backward()
        strategy.finish(wrapped)
        yield from (parameter.grad.clone() for parameter in wrapped.parameters() if parameter.grad is not None)
        optimizer.step()
        optimizer.zero_grad()
    yield from (parameter.detach().clone() for parameter in wrapped.parameters())


def main(out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    strategies = (stock_ddp(CAP_MB), bucketed(CAP_MB), naive(), flat(), overlap())
    saved = {strategy.name: list(train(strategy)) for strategy in strategies}
    torch.save(saved, f"{out}/{dist.get_rank()}.pt")
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
