"""DDP with a loss that all ranks average each step, for some seconds: `clocked.py RUN SECONDS [TRUTH]`.

With TRUTH rank 1 runs under a clock that is really wrong, libfaketime's, and both ranks write there what the kernel
says beside it: TRUTH.<rank>.npy, once a step the instant that Python reads and that of the machine's monotonic clock.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
WRONG = "+0.05s x1.0001"
CLOCK_GETTIME, MONOTONIC = 228, 1  # the system call's number on x86-64
WIDTH, LAYERS, ROWS = 256, 6, 256


def started_anew_under_a_wrong_clock() -> None:
    """Rank 1 alone, and once."""
    if os.environ["RANK"] == "1" and "FAKETIME" not in os.environ:
        os.environ |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME": WRONG}
        os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("ns", ctypes.c_long))


said = Timespec()
syscall = ctypes.CDLL(None).syscall


def machine_ns() -> int:
    """Past every library."""
    syscall(CLOCK_GETTIME, MONOTONIC, ctypes.byref(said))
    return int(said.seconds * 1_000_000_000 + said.ns)


def pair() -> tuple[int, int]:
    """What Python reads, and the machine at the same instant: the tightest of a few brackets."""
    brackets = [(machine_ns(), time.perf_counter_ns(), machine_ns()) for _ in range(5)]
    before, told, after = min(brackets, key=lambda one: one[2] - one[0])
    return told, (before + after) // 2


def main(run: str, seconds: float, truth: str | None) -> None:
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import ddptrace
    from tests.programs.leaving import leave

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs, pairs = torch.randn(ROWS, WIDTH), []
    with ddptrace.trace(run):
        begin = machine_ns()
        going = torch.ones(2)
        while going[1] > 0:
            loss = model(inputs).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            going = torch.stack((loss.detach(), torch.tensor(float(machine_ns() - begin < seconds * 1e9))))
            dist.all_reduce(going, op=dist.ReduceOp.MIN)
            if truth is not None:
                pairs.append(pair())
    if truth is not None:
        np.save(f"{truth}.{dist.get_rank()}.npy", np.array(pairs))
    leave()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        started_anew_under_a_wrong_clock()
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
