"""Trains under a trace that stops recording collectives before its profiler window begins: `unrecorded.py RUN OUT`.

Rank R leaves `told-R.json` in OUT: the ledger of the training.
"""

import json
import sys
import warnings
from pathlib import Path

import torch.distributed as dist
from torch.profiler import schedule

import ddptrace
from ddptrace.capture import session
from tests.device.device import HERE
from tests.device.programs.training import COLLECTIVE_NS, KERNEL_NS, WRAPPERS, trained

STEPS, RECORDED = 7, 2


def main() -> None:
    run, out = sys.argv[1], Path(sys.argv[2])
    HERE.begin()
    HERE.set_floors_ns(KERNEL_NS, COLLECTIVE_NS)
    HERE.take_ledger()
    with ddptrace.trace(run, profile=schedule(wait=2, warmup=1, active=3, repeat=1)):
        trained(HERE.name, WRAPPERS["stock"], STEPS, stop)
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps({"ledger": HERE.take_ledger()[0]}))
    HERE.end()


def stop(done: int) -> None:
    if done == RECORDED:
        HERE.synchronize()  # so that none of the recorded ones still runs in a profiled step
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session._current.surfaces["collectives"].failed(RuntimeError("planted"))


main()
