"""Large collectives one after the other, without a single backward. `no_backward.py RUN`: prints how many completions
were noted and not written at most, and how many collectives there were."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import ddptrace
from ddptrace.capture.collectives import tap
from ddptrace.capture.collectives.calls import Collectives
from ddptrace.capture.collectives.completions import MANY
from tests.programs.leaving import leave


def main(run: str) -> None:
    dist.init_process_group("gloo")
    most, tensor = 0, torch.ones(32 << 10)
    with ddptrace.trace(run):
        watcher = tap._watcher
        assert isinstance(watcher, Collectives)
        for _ in range(4 * MANY):
            dist.all_reduce(tensor, async_op=True).wait()
            most = max(most, len(watcher.completions.noted))
    print(f"\nmost: {most} of {4 * MANY}")
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
