"""Trains on the test device under a trace of ddptrace with profiler windows: `recorded.py RUN OUT WRAPPER`.

Rank R leaves `told-R.json` in OUT: losses with and without the trace, and the whole ledger of the traced training.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist
from torch.profiler import schedule

import ddptrace
from tests.device.device import HERE
from tests.device.programs.training import COLLECTIVE_NS, KERNEL_NS, WRAPPERS, trained

STEPS = 6


def main() -> None:
    run, out, wrapper = sys.argv[1], Path(sys.argv[2]), WRAPPERS[sys.argv[3]]
    HERE.begin()
    untraced = trained(HERE.name, wrapper, STEPS)
    HERE.set_floors_ns(KERNEL_NS, COLLECTIVE_NS)
    HERE.take_ledger()
    with ddptrace.trace(run, profile=schedule(wait=1, warmup=1, active=3, repeat=1)):
        losses = trained(HERE.name, wrapper, STEPS)
    ledger = HERE.take_ledger()[0]
    told = {"losses": losses, "untraced": untraced, "ledger": ledger}
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    HERE.end()


main()
