"""Trains on the test device under a trace without profiler windows: `events.py RUN OUT WRAPPER [stuck]`.

Rank R leaves `told-R.json` in OUT: losses with and without the trace, how far the host ran ahead of the device in both,
how often the host waited for the device, and the whole ledger of the traced training. With "stuck", another stream
waits during the trace for something that comes only after it.
"""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ddptrace
from tests.device import testdev
from tests.device.programs.training import WRAPPERS, trained

STEPS = 12
KERNEL_NS, COLLECTIVE_NS = 1_000_000, 8_000_000


class Waits:
    """Counts calls that hold the host until the device is done."""

    def __init__(self) -> None:
        self.count = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        owners: list[tuple[Any, str]] = [(torch.testdev, "synchronize"), (torch.accelerator, "synchronize")]
        originals = [getattr(owner, name) for owner, name in owners]
        for (owner, name), original in zip(owners, originals, strict=True):
            setattr(owner, name, self._counting(original))
        try:
            yield
        finally:
            for (owner, name), original in zip(owners, originals, strict=True):
                setattr(owner, name, original)

    def _counting(self, original: Any) -> Any:
        def synchronize(*args: Any) -> Any:
            self.count += 1
            return original(*args)

        return synchronize


def ahead_ns(ledger: list[testdev.Entry]) -> list[int]:
    """Return how long each kernel of the training waited in its queue."""
    return [entry.begin_ns - entry.launched_ns for entry in ledger if entry.kind == "kernel" and entry.stream == 0]


def main() -> None:
    run, out, wrapper = sys.argv[1], Path(sys.argv[2]), WRAPPERS[sys.argv[3]]
    dist.init_process_group(testdev.BACKENDS)
    trained(testdev.NAME, wrapper, 2)
    testdev.set_floors_ns(KERNEL_NS, COLLECTIVE_NS)
    testdev.take_ledger()
    untraced = trained(testdev.NAME, wrapper, STEPS)
    before = testdev.take_ledger()
    dist.barrier()
    waits = Waits()
    with waits.counted(), ddptrace.trace(run):
        losses = trained(testdev.NAME, wrapper, STEPS)
        time.sleep(0.1)
    ledger = testdev.take_ledger()
    told = {
        "losses": losses,
        "untraced": untraced,
        "waits": waits.count,
        "ahead_ns": ahead_ns(ledger),
        "ahead_untraced_ns": ahead_ns(before),
        "ledger": [dataclasses.asdict(entry) for entry in ledger],
    }
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


main()
