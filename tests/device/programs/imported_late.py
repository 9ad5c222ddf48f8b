"""Makes a profiler of ddptrace before torch knows the device, as `ddptrace run` does: `imported_late.py FILE`.

FILE is the profiler's, of one window.
"""

import sys

import torch
from torch.profiler import schedule

from ddptrace.capture.profiler.profilers import scheduled


def main() -> None:
    profiler = scheduled(schedule(wait=0, warmup=1, active=1, repeat=1))
    from tests.device import testdev  # noqa: F401

    ones = torch.ones(4).to("testdev")
    with profiler:
        profiler.step()
        (ones + 1).sum().item()
    profiler.export_chrome_trace(sys.argv[1])


main()
