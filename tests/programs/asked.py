"""A training with one cause of lost time: `asked.py RUN CAUSE [--profile]`. CAUSE "nothing" is the healthy one.

Ranks sleep where a real one would compute, so that none waits for a processor: outside a profiler window forward,
backward and update count as computing. The model is LAYERS equal layers behind a small one, whose gradient is the last:
little is left to send when backward has nothing more to hide it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ddptrace
from tests.programs.leaving import leave

ENTRY, LAYERS, WIDTH = 8, 4, 256
STEPS, MANY_STEPS = 20, 50
CAP_MB = 0.25  # one weight, exactly
REST_S = 0.006
LATE_S = 0.02
SMALL = 57  # 228 bytes
BUSY_S = 0.03
SENT_AT_ONCE, AT_ONCE_NUMEL = 16, 1_000_000


class Rest(torch.autograd.Function):
    """Passes on what it is given; its backward takes a while."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        time.sleep(ctx.seconds)
        return gradient, None


class Net(nn.Module):
    """`heavy`: rows of a table of 32 B each, whose gradient is the last one. `spare`: a layer that nothing uses."""

    def __init__(self, *, width: int = WIDTH, heavy: int = 0, spare: bool = False, slower_s: float = 0.0) -> None:
        super().__init__()
        self.entry = nn.Linear(ENTRY, width)
        self.table = nn.Embedding(heavy, ENTRY) if heavy else None
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.spare = nn.Linear(width, width) if spare else None
        self.slower_s = slower_s

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.table is not None:
            inputs = inputs + self.table(torch.zeros(len(inputs), dtype=torch.int64))
        inputs = self.entry(inputs)
        for layer in self.layers:
            inputs = torch.relu(layer(Rest.apply(inputs, REST_S)))
        return Rest.apply(inputs, self.slower_s)  # before any gradient


class Rows(Dataset[torch.Tensor]):
    """`late_s` before each row that is one of every `every`."""

    def __init__(self, steps: int, late_s: float, every: int, batch: int) -> None:
        self.steps, self.late_s, self.every, self.batch = steps, late_s, every, batch

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % self.every == self.every - 1:
            time.sleep(self.late_s)
        return torch.full((self.batch, ENTRY), index / self.steps)


def train(
    model: nn.Module,
    steps: int = STEPS,
    late_s: float = 0.0,
    every: int = 1,
    synchronised: str = "s",
    batch: int = 8,
    after: Callable[[torch.Tensor], None] = lambda output: None,
) -> None:
    """`synchronised`: of each backward of a step, "s" or, inside no_sync(), "n"; `after`: the update, each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for rows in DataLoader(Rows(steps, late_s, every, batch), batch_size=None):
        for one in synchronised:
            with model.no_sync() if one == "n" else nullcontext():  # type: ignore[operator]
                output = model(rows)
                output.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(output.detach())


def wrapped(cap_mb: float = CAP_MB, find: bool = False, **net: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(Net(**net), bucket_cap_mb=cap_mb, find_unused_parameters=find)


def second_is_late() -> float:
    return LATE_S if dist.get_rank() == 1 else 0.0


def agree(output: torch.Tensor) -> None:
    dist.all_reduce(torch.ones(SMALL))


def agree_late(output: torch.Tensor) -> None:
    time.sleep(second_is_late())
    agree(output)


def share(output: torch.Tensor) -> None:
    """As large as the batch is."""
    dist.all_gather([torch.empty_like(output) for _ in range(dist.get_world_size())], output)


def send_at_once(output: torch.Tensor) -> None:
    for work in [dist.all_reduce(torch.ones(AT_ONCE_NUMEL), async_op=True) for _ in range(SENT_AT_ONCE)]:
        work.wait()


def compute(output: torch.Tensor) -> None:
    """What takes BUSY_S of a processor that this rank has for itself."""
    matrix, end = torch.ones(128, 128), time.thread_time() + BUSY_S
    while time.thread_time() < end:
        matrix = torch.tanh(matrix @ matrix)


def on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    train(wrapped(), after=compute)


CAUSES: dict[str, Callable[[], None]] = {
    "nothing": lambda: train(wrapped(), MANY_STEPS, after=agree),
    "cap of 0.1": lambda: train(wrapped(cap_mb=0.1)),
    "cap of 0.3": lambda: train(wrapped(cap_mb=0.3)),
    "cap of 0.0499": lambda: train(wrapped(cap_mb=0.0499)),
    "one bucket": lambda: train(wrapped(cap_mb=100, width=4 * WIDTH)),
    "a bucket each": lambda: train(wrapped(cap_mb=16 * CAP_MB, width=4 * WIDTH)),
    "heavy layer": lambda: train(wrapped(heavy=1_000_000)),
    "late agreement": lambda: train(wrapped(), after=agree_late),
    "slow data": lambda: train(wrapped(), late_s=LATE_S),
    "late data": lambda: train(wrapped(), late_s=second_is_late()),
    "slower backward": lambda: train(wrapped(slower_s=second_is_late())),
    "now and then": lambda: train(wrapped(), MANY_STEPS, late_s=10 * second_is_late(), every=8),
    "nothing unused": lambda: train(wrapped(find=True)),
    "one unused": lambda: train(wrapped(find=True, spare=True)),
    "accumulated": lambda: train(wrapped(), synchronised="ns"),
    "sent twice": lambda: train(wrapped(), synchronised="ss"),
    "sent early": lambda: train(wrapped(), synchronised="sn"),
    "at once": lambda: train(wrapped(), after=send_at_once),
    "one core": on_one_core,
    "batch of 8": lambda: train(wrapped(), after=share),
    "batch of 32": lambda: train(wrapped(), batch=32, after=share),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("cause", choices=CAUSES)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    schedule = torch.profiler.schedule(wait=3, warmup=1, active=STEPS - 5, repeat=1) if options.profile else None
    with ddptrace.trace(options.run, profile=schedule):
        CAUSES[options.cause]()
    leave()


if __name__ == "__main__":
    main()
