"""Stock DDP, traced without a word of telemetry: `exported.py RUN TOLD [HOW]`. What exports it, the environment says.

Each rank writes to TOLD/<rank>.json how long leaving the trace took, and the warnings of it. HOW `killed`: by SIGKILL
in the middle of the trace; `slowly`: a step lasts longer, so that there is time for something to happen meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

STEPS = 24


def main(run: str, told: str, how: str = "") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with ddptrace.trace(run):
            train(0.25 if how == "slowly" else 0.1)
            dist.all_reduce(torch.ones(1))  # after the last step
            if how == "killed":
                time.sleep(1.5)
                os.kill(os.getpid(), signal.SIGKILL)
            began_s = time.monotonic()
        left_s = time.monotonic() - began_s
    mine = [str(one.message) for one in said if issubclass(one.category, RuntimeWarning)]
    Path(told, f"{dist.get_rank()}.json").write_text(json.dumps({"left_s": left_s, "warnings": mine}))
    leave()


def train(pause_s: float) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.randn(32, 256)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
