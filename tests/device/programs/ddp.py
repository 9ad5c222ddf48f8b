"""Trains on the test device, under torch.profiler, and then on the CPU: `ddp.py OUT WRAPPER`.

Rank R leaves `rank-R.json` (the profiler's file) and `told-R.json`: losses, the ledger of the profiler's window, and
when each step of the window was over on the host.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import profile, schedule

from tests.device.device import HERE
from tests.device.programs.training import COLLECTIVE_NS, KERNEL_NS, WRAPPERS, trained

BEFORE, ACTIVE = 2, 4  # steps


def main() -> None:
    out, wrapper = Path(sys.argv[1]), WRAPPERS[sys.argv[2]]
    HERE.begin()
    rank = dist.get_rank()
    told: dict[str, Any] = {"ends_ns": []}

    def after_step(done: int) -> None:
        told["ends_ns"].append(time.time_ns())
        if done == BEFORE:  # the file begins here, between the device's work
            HERE.take_ledger()
            told["ends_ns"].clear()
        profiler.step()
        if done == BEFORE + ACTIVE:
            told["ledger"] = HERE.take_ledger()[0]

    with profile(
        activities=HERE.activities,
        schedule=schedule(wait=BEFORE - 1, warmup=1, active=ACTIVE, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(out / f"rank-{rank}.json")),
    ) as profiler:
        HERE.set_floors_ns(KERNEL_NS, COLLECTIVE_NS)
        told["losses"] = trained(HERE.name, wrapper, BEFORE + ACTIVE, after_step)
    told["losses_on_cpu"] = trained("cpu", wrapper, BEFORE + ACTIVE)
    (out / f"told-{rank}.json").write_text(json.dumps(told))
    HERE.end()


main()
