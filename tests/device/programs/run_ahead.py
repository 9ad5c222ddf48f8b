"""Launches steps behind a long kernel, without a trace and under one: `run_ahead.py RUN OUT WRAPPER`.

Rank R leaves `told-R.json`: by way, whether the kernel still ran when all steps were launched, and how long launching
took.
"""

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch.distributed as dist

import ddptrace
from tests.device.device import HERE
from tests.device.programs.strategies import STEPS, STRATEGIES, Step

LONG_NS = 2_000_000_000  # longer than a busy machine may hold the host
WARM, BEHIND = 12, 2  # steps; on CUDA, stock DDP waits for the step before in each of its first ten, to time it


def main() -> None:
    run, out, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    HERE.begin()
    told = {
        "untraced": launched(STRATEGIES[name].make(HERE.name), nullcontext()),
        "traced": launched(STRATEGIES[name].make(HERE.name), ddptrace.trace(run)),
    }
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    HERE.end()


def launched(step: Step, around: AbstractContextManager[Any]) -> dict[str, Any]:
    with around:
        for number in range(WARM):
            step(number % STEPS)
        HERE.synchronize()
        over = HERE.module.Event()
        HERE.spend(LONG_NS)
        over.record()
        begin = time.perf_counter_ns()
        for number in range(WARM, WARM + BEHIND):
            step(number % STEPS)
        told = {"is_ahead": not over.query(), "launching_ns": time.perf_counter_ns() - begin}
        HERE.synchronize()
    return told


main()
