"""A pipeline whose computations take known times. `pipelined.py RUN SCHEDULE MICROBATCHES [STAGE=MS ...]`.

Each stage sleeps 4 ms in its forward and 8 ms in its backward of each microbatch, or `MS` and twice that.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

import ddptrace
from tests.programs.leaving import leave

STEPS, WIDTH, FORWARD_MS = 4, 8, 4.0


class Sleep(torch.autograd.Function):
    """Sleeps so many ms in forward, and twice as long in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ms: float) -> torch.Tensor:
        ctx.ms = ms
        time.sleep(ms / 1e3)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * ctx.ms / 1e3)
        return gradient, None


class Stage(nn.Module):
    def __init__(self, ms: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.ms = ms

    def forward(self, x: torch.Tensor) -> Any:
        return Sleep.apply(self.linear(x), self.ms)


def made(kind: type, rank: int, ranks: int, microbatches: int, slow: dict[int, float]) -> tuple[Any, list[Stage]]:
    """Return the schedule and the modules of this rank's stages: one, or two where the schedule takes several."""
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    numbers = [rank]
    if several:
        numbers = [rank, 2 * ranks - 1 - rank] if "ZBV" in kind.__name__ else [rank, rank + ranks]
    modules = [Stage(slow.get(number, FORWARD_MS)) for number in numbers]
    stages = [
        PipelineStage(module, number, len(numbers) * ranks, torch.device("cpu"))
        for module, number in zip(modules, numbers, strict=True)
    ]
    loss = lambda output, target: (output - target).pow(2).mean()  # noqa: E731
    return kind(stages if several else stages[0], microbatches, loss_fn=loss), modules


def main(run: str, name: str, microbatches: int, slow: dict[int, float]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    schedule, modules = made(getattr(schedules, name), rank, ranks, microbatches, slow)
    optimizer = torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.01)
    batch, target = torch.ones(2 * microbatches, WIDTH), torch.zeros(2 * microbatches, WIDTH)
    is_last = any(stage.is_last for stage in getattr(schedule, "_stages", None) or [schedule._stage])
    with ddptrace.trace(run):
        for _ in range(STEPS):
            schedule.step(*([batch] if rank == 0 else []), **({"target": target} if is_last else {}))
            optimizer.step()
            optimizer.zero_grad()
    leave()


if __name__ == "__main__":
    told = [one.split("=") for one in sys.argv[4:]]
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), {int(stage): float(ms) for stage, ms in told})
