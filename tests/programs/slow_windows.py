"""Training of steady steps that may become slower: `slow_windows.py RUN [--slow-at K] ...`.

It trains for `--steps` steps, or until ranks have saved `--windows` windows: a collective of its own tells each rank.
`--save OUT` saves the parameters.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from ddptrace.capture.identity import Group
from ddptrace.capture.profiler import next_window
from tests.programs.leaving import leave

STEP_S, SLOW_S = 0.004, 0.15
FACTOR = 4.0  # on a busy machine the usual steps take several times STEP_S


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--slow-at", type=int, default=-1, help="the last rank is slow from this step on")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--windows", type=int, default=0, help="end once ranks have saved this many")
    parser.add_argument("--factor", type=float, default=FACTOR)
    parser.add_argument("--untraced", action="store_true")
    parser.add_argument("--on-request", action="store_true", help="do not look for slow steps")
    parser.add_argument("--ranks", default="all")
    parser.add_argument(
        "--deaf", action="store_true", help="rank 0 looks at the store when rank 1 has saved its window"
    )
    parser.add_argument("--kill-in-window", action="store_true", help="rank 1 is killed within the window")
    parser.add_argument("--save")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if options.deaf:
        be_deaf(Path(options.run))
    ranks = "all" if options.ranks == "all" else tuple(map(int, options.ranks.split(",")))
    slow = None if options.on_request else ddptrace.when_slow(factor=options.factor, ranks=ranks, at_most=1)
    with contextlib.nullcontext() if options.untraced else ddptrace.trace(options.run, profile=slow):
        model = train(options)
    if options.save:
        torch.save(list(model.state_dict().values()), f"{options.save}-{dist.get_rank()}.pt")
    leave()


def be_deaf(run: Path) -> None:
    next_window.CONFIRM_S = 0.2
    look = next_window.SameSteps._look_with

    def look_late(own: next_window.SameSteps, group: Group) -> None:
        if group.rank == 1 or list((run / "rank-00001").glob("kineto-*.json.gz")):
            look(own, group)

    next_window.SameSteps._look_with = look_late  # type: ignore[method-assign]


def train(options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = Path(options.run) / f"rank-{rank:05d}"
    for step in range(options.steps):
        is_slow = options.slow_at >= 0 and step >= options.slow_at and rank == dist.get_world_size() - 1
        time.sleep(SLOW_S if is_slow else STEP_S)
        loss = model(torch.full((4, 16), float(step + rank))).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if options.kill_in_window and rank == 1 and torch.autograd.profiler._is_profiler_enabled:
            os.kill(os.getpid(), signal.SIGKILL)
        if options.windows:
            saved = torch.tensor(len(list(folder.glob("kineto-*.json.gz"))))
            dist.all_reduce(saved, dist.ReduceOp.MAX)
            if saved >= options.windows:
                break
    return model.module


if __name__ == "__main__":
    main()
