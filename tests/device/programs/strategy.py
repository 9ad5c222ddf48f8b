"""Trains by one strategy under a trace of ddptrace with a profiler window: `strategy.py RUN OUT NAME`.

Rank R leaves `told-R.json` in OUT: losses under the trace, without one, and on the CPU, and the ledger of the traced
training.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import schedule

import ddptrace
from tests.device.device import HERE
from tests.device.programs.strategies import STEPS, STRATEGIES, Step, Strategy
from tests.device.programs.training import COLLECTIVE_NS, KERNEL_NS

WINDOW = {"wait": 2, "warmup": 1, "active": 3, "repeat": 1}


def main() -> None:
    run, out, strategy = sys.argv[1], Path(sys.argv[2]), STRATEGIES[sys.argv[3]]
    HERE.begin()
    told: dict[str, Any] = {"untraced": trained(HERE.name, strategy), "on_cpu": None, "main_thread": os.getpid()}
    step = strategy.make(HERE.name)
    HERE.set_floors_ns(KERNEL_NS, COLLECTIVE_NS)
    HERE.take_ledger()
    with ddptrace.trace(run, profile=schedule(**WINDOW)):
        losses = [step(number) for number in range(STEPS)]
    told["ledger"], told["calls"] = HERE.take_ledger()
    HERE.set_floors_ns()
    told["losses"] = numbers(losses)
    if strategy.on_cpu:
        told["on_cpu"] = trained("cpu", strategy)
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    HERE.end()


def trained(device: str, strategy: Strategy) -> list[float]:
    step: Step = strategy.make(device)
    return numbers([step(number) for number in range(STEPS)])


def numbers(losses: list[Any]) -> list[float]:
    return [float(loss) for loss in losses if loss is not None]


main()
