"""Trains a small GPT on Python's own sources, with stock DDP and with our reducer. `reducer_text.py OUT [compiled]`

Saves the losses and the final parameters of both.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddptrace.bench.workloads import Gpt
from ddptrace.reducer import BucketedDataParallel
from tests.programs.leaving import leave

STEPS, BATCH, CONTEXT = 60, 8, 64


def text() -> Tensor:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()


def train(kind: type[torch.nn.Module], data: Tensor, compiled: bool) -> list[Tensor]:
    torch.manual_seed(1)
    torch._dynamo.reset()
    module: torch.nn.Module = Gpt(layers=2, width=96, heads=4)
    wrapped = kind(
        torch.compile(module, backend="aot_eager") if compiled else module, bucket_cap_mb=1 if compiled else 0.2
    )
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=3e-3)
    chance = torch.Generator().manual_seed(dist.get_rank())
    values = []
    for _ in range(STEPS):
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=chance)
        windows = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
        loss = wrapped(windows[:, :-1], windows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(loss.detach())
    return values + [parameter.detach().clone() for parameter in wrapped.parameters()]


def main(out: str, compiled: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = text()
    saved = {kind.__name__: train(kind, data, compiled) for kind in (DistributedDataParallel, BucketedDataParallel)}
    torch.save(saved, f"{out}/text-{dist.get_rank()}.pt")
    leave()


if __name__ == "__main__":
    main(sys.argv[1], "compiled" in sys.argv[2:])
