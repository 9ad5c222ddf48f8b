"""Trains on the test device while its compute stream is held up: `held_up.py RUN OUT WRAPPER`.

A kernel that takes longer than the whole trace comes first, and so nothing that is launched behind it is over within
the trace. Rank R leaves `told-R.json` in OUT: when the host had launched the last step, when it left the trace, and
when the kernel ended.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import ddptrace
from tests.device import testdev
from tests.device.programs.training import WRAPPERS

STEPS = 4
HELD_NS = 20_000_000_000


def main() -> None:
    run, out, wrapper = sys.argv[1], Path(sys.argv[2]), WRAPPERS[sys.argv[3]]
    dist.init_process_group(testdev.BACKENDS)
    model = wrapper_of_a_model(wrapper)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(16, 64).to(testdev.NAME)
    for _ in range(3):  # until the buckets are rebuilt, which waits for the device
        step(model, optimizer, batch)
    testdev.take_ledger()
    dist.barrier()
    testdev.take_ledger()
    testdev.take_calls()
    testdev.spend(HELD_NS)
    with ddptrace.trace(run):
        for _ in range(STEPS):
            step(model, optimizer, batch)
        launched = time.time_ns()
    left = time.time_ns()
    spent = next(entry for entry in testdev.take_ledger() if entry.name.startswith("spend"))
    waits = [call.name for call in testdev.take_calls() if "Synchronize" in call.name and call.begin_ns < left]
    told = {
        "steps": STEPS,
        "waits": waits,
        "launched_ns": launched,
        "left_ns": left,
        "held_until_ns": spent.end_ns,
    }
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def wrapper_of_a_model(wrap: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = wrap(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(testdev.NAME))
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    model(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


main()
