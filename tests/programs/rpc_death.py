"""Worker 1 dies in the middle of a call; worker 0 is told and goes on. `rpc_death.py FOLDER`."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.distributed import rpc

import ddptrace
from tests.programs.rpc_workers import fork_workers, join


def lives(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(rank: int, folder: Path) -> None:
    with ddptrace.trace(folder / "run"):
        join(rank, 2, folder)
        if rank == 1:
            time.sleep(60)
        print(float(rpc.rpc_sync("worker1", lives, args=(torch.zeros(1),))))
        try:
            rpc.rpc_sync("worker1", dies)
        except RuntimeError:
            print("told")


if __name__ == "__main__":
    print(*fork_workers(2, functools.partial(main, folder=Path(sys.argv[1]))))
