"""Trains with stock DDP on the test device, under torch.profiler, and then on the CPU: `ddp.py OUT`.

Each rank R leaves `rank-R.json` (the profiler's file) and `told-R.json`: losses, the ledger of the profiler's window, and
when each step of the window was over on the host.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from tests.device import testdev

KERNEL_NS = 300_000
COLLECTIVE_NS = 3_000_000
BEFORE, ACTIVE = 2, 4  # steps


def main() -> None:
    out = Path(sys.argv[1])
    dist.init_process_group(testdev.BACKENDS)
    rank = dist.get_rank()
    told: dict[str, Any] = {"ends_ns": []}

    def window(losses: list[torch.Tensor], profiler: profile) -> None:
        told["ends_ns"].append(time.time_ns())
        if len(losses) == BEFORE:  # the file begins here, and nothing of the device's work is cut
            testdev.take_ledger()
            told["ends_ns"].clear()
        profiler.step()

    activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    steps = schedule(wait=BEFORE - 1, warmup=1, active=ACTIVE, repeat=1)
    with profile(
        activities=activities,
        schedule=steps,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(out / f"rank-{rank}.json")),
    ) as profiler:
        testdev.set_floors_ns(KERNEL_NS, COLLECTIVE_NS)
        told["losses"] = trained(testdev.NAME, lambda losses: window(losses, profiler))
        testdev.set_floors_ns()
    told["ledger"] = [dataclasses.asdict(entry) for entry in testdev.take_ledger()]
    told["losses_on_cpu"] = trained("cpu", lambda losses: None)
    (out / f"told-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def trained(device: str, after_step: Any) -> list[float]:
    """Train, and return the loss of each step."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(device), bucket_cap_mb=0.02
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    batches = [torch.randn(16, 64).to(device) for _ in range(BEFORE + ACTIVE)]
    losses: list[torch.Tensor] = []
    for batch in batches:
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        after_step(losses)
    return [loss.item() for loss in losses]


main()
