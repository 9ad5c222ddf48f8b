"""Pipelines whose computations take known times. `pipelined.py OUT FORWARD_MS SCHEDULE:MICROBATCHES[:STAGE=TIMES] ...`.

Each stage sleeps FORWARD_MS in its forward of each microbatch, and twice as long in its backward; a slow stage TIMES as
long. Each schedule leaves a run in OUT, and must leave torch's classes as they were. `foreign:SCHEDULE:…` leaves files
of torch.profiler alone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules, stage

import ddptrace
from tests.programs.leaving import leave

STEPS, WIDTH = 4, 8
CLASSES = (
    schedules._PipelineSchedule,
    schedules.PipelineScheduleSingle,
    schedules.PipelineScheduleMulti,
    stage._PipelineStageBase,
)


class Sleep(torch.autograd.Function):
    """Sleeps in forward, and twice as long in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ms: float) -> torch.Tensor:
        ctx.ms = ms
        time.sleep(ms / 1e3)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * ctx.ms / 1e3)
        return gradient, None


class Part(nn.Module):
    def __init__(self, ms: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.ms = ms

    def forward(self, x: torch.Tensor) -> Any:
        return Sleep.apply(self.linear(x), self.ms)


def difference(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).pow(2).mean()


def stages_of(kind: type, rank: int, ranks: int) -> list[int]:
    """Return the numbers of a rank's stages: one, or two where the schedule takes several."""
    if not issubclass(kind, schedules.PipelineScheduleMulti):
        return [rank]
    return [rank, 2 * ranks - 1 - rank] if "ZBV" in kind.__name__ else [rank, rank + ranks]


def train(name: str, microbatches: int, ms: dict[int, float], out: Path | None) -> list[float]:
    """Train, with a trace if there is a folder for it. Return the losses on the rank that has them."""
    kind, rank, ranks = getattr(schedules, name), dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    numbers = stages_of(kind, rank, ranks)
    parts = [Part(ms[number]) for number in numbers]
    made = [
        PipelineStage(part, number, len(numbers) * ranks, torch.device("cpu"))
        for part, number in zip(parts, numbers, strict=True)
    ]
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    schedule = kind(made if several else made[0], microbatches, loss_fn=difference)
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)
    batch, target = torch.ones(2 * microbatches, WIDTH), torch.zeros(2 * microbatches, WIDTH)
    losses: list[torch.Tensor] = []
    last = {"target": target, "losses": losses} if any(one.is_last for one in made) else {}
    told: list[float] = []

    def steps() -> None:
        for _ in range(STEPS):
            schedule.step(*([batch] if rank == 0 else []), **last)
            optimizer.step()
            optimizer.zero_grad()
            told.extend(loss.item() for loss in losses)

    if out is None:
        steps()
        return told
    if out.name == "foreign":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            steps()
        out.mkdir(exist_ok=True)
        profiler.export_chrome_trace(str(out / f"rank-{rank}.json"))
        return told
    before = [dict(vars(one)) for one in CLASSES]
    with ddptrace.trace(out):
        steps()
    assert all(before[at][name] is vars(one)[name] for at, one in enumerate(CLASSES) for name in before[at])
    return told


def main(out: Path, forward_ms: float, wanted: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for one in wanted:
        is_foreign = one.startswith("foreign:")
        name, microbatches, *slow = one.removeprefix("foreign:").split(":")
        times = dict(pair.split("=") for pair in slow)
        ms = {number: forward_ms * float(times.get(str(number), 1)) for number in range(2 * dist.get_world_size())}
        traced = train(name, int(microbatches), ms, out / ("foreign" if is_foreign else name))
        if one is wanted[0]:
            assert traced == train(name, int(microbatches), dict.fromkeys(ms, 0.0), None)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
