"""Trains one small model; saves every loss and the final parameters. `same_bits.py CASE OUT [RUN]`: RUN traces it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

STEPS = 6


class Branches(nn.Module):
    """Uses one of two branches, another one on every rank and step where `alternate`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(32, 64)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)) for _ in range(2))

    def forward(self, inputs: torch.Tensor, branch: int) -> torch.Tensor:
        out: torch.Tensor = self.branches[branch](torch.relu(self.stem(inputs)))
        return out


def losses(case: str, rank: int) -> Iterator[torch.Tensor]:
    torch.manual_seed(1)
    unused = case == "unused"
    model = DistributedDataParallel(Branches(), bucket_cap_mb=0.02, find_unused_parameters=unused)
    if not unused:
        for parameter in model.module.branches[1].parameters():
            parameter.requires_grad_(False)
        model = DistributedDataParallel(model.module, bucket_cap_mb=1 if case == "compiled" else 0.02)
    if case == "compiled":
        model = torch.compile(model, backend="aot_eager")
    if case == "hook":
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    for step in range(STEPS):
        branch = (step + rank) % 2 if unused else 0
        for micro in range(3 if case == "no_sync" else 1):
            syncing = case != "no_sync" or micro == 2
            with contextlib.nullcontext() if syncing else model.no_sync():
                loss = model(torch.randn(16, 32), branch).pow(2).mean()
                loss.backward()
            yield loss.detach()
        optimizer.step()
        optimizer.zero_grad()
    for parameter in model.parameters():
        yield parameter.detach().clone()


def main(case: str, out: str, run: str | None) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1)
    with ddptrace.trace(run, profile=schedule) if run else contextlib.nullcontext():
        torch.save(list(losses(case, rank)), f"{out}-{rank}.pt")
    leave()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
