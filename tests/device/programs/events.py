"""Trains on the test device under a trace without profiler windows: `events.py RUN OUT WRAPPER [SLICE_NS]`.

With SLICE_NS, all ranks share one device, which serves each of them for so long.
Rank R leaves `told-R.json` in OUT: losses with and without the trace, how often the host waited for the device in both,
and the whole ledger of the traced training.
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch.distributed as dist

import ddptrace
from tests.device import testdev
from tests.device.programs.training import WRAPPERS, trained

STEPS = 12
KERNEL_NS, COLLECTIVE_NS = 1_000_000, 8_000_000


def waits() -> int:
    """Count the calls since the last time in which the host waited for the device."""
    return sum("Synchronize" in call.name for call in testdev.take_calls())


def main() -> None:
    run, out, wrapper = sys.argv[1], Path(sys.argv[2]), WRAPPERS[sys.argv[3]]
    dist.init_process_group(testdev.BACKENDS)
    if sys.argv[4:]:
        testdev.take_turns(int(sys.argv[4]), dist.get_rank(), dist.get_world_size())
    trained(testdev.NAME, wrapper, 2)
    testdev.set_floors_ns(KERNEL_NS, COLLECTIVE_NS)
    testdev.take_ledger()
    testdev.take_calls()
    untraced = trained(testdev.NAME, wrapper, STEPS)
    testdev.take_ledger()
    waits_untraced = waits()
    dist.barrier()
    testdev.take_ledger()
    testdev.take_calls()
    with ddptrace.trace(run):
        losses = trained(testdev.NAME, wrapper, STEPS)
    ledger = testdev.take_ledger()
    told = {
        "losses": losses,
        "untraced": untraced,
        "waits": waits(),
        "strays": sorted(testdev.strays),
        "waits_untraced": waits_untraced,
        "ledger": [dataclasses.asdict(entry) for entry in ledger],
    }
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


main()
