"""A tiny model trained for very long under a trace.

`soaked.py RUN STEPS NBYTES [--every K] [--look-every N] [--alone N]`: `--alone` has each rank issue so many
collectives a step in a group of its own, beside what the ranks do together: they take no time and fill the records.
Each rank leaves RUN.rank-<rank>.json: its resident memory and the blocks of Python's objects every N steps, and how
many collectives a step has, as it issued them itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

OWN = 1  # all-reduces that the loop issues by itself


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("steps", type=int)
    parser.add_argument("nbytes", type=int)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--look-every", type=int, default=5000)
    parser.add_argument("--alone", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))), bucket_cap_mb=0.002)
    keep = ddptrace.Keep(nbytes=options.nbytes, every=options.every)
    with ddptrace.trace(options.run, keep=keep, overwrite=True):
        looks = train(model, options, alone)
    buckets = str(model._get_ddp_logging_data()["rebuilt_bucket_sizes"]).split(",")
    told = {"looks": looks, "calls_per_step": OWN + options.alone + len(buckets)}
    Path(f"{options.run}.rank-{dist.get_rank()}.json").write_text(json.dumps(told))
    leave()


def train(model: nn.Module, options: argparse.Namespace, alone: dist.ProcessGroup) -> list[tuple[int, int, int]]:
    """Steps done, and bytes resident and blocks that objects take by then, again and again."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, loss_sum = torch.randn(2, 16), torch.zeros(1)
    looks = []
    for step in range(options.steps):
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss_sum)
        for _ in range(options.alone):
            dist.all_reduce(loss_sum, group=alone)
        if step % options.look_every == options.look_every - 1:
            gc.collect()
            looks.append((step + 1, resident_nbytes(), sys.getallocatedblocks()))
    return looks


def resident_nbytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


if __name__ == "__main__":
    main()
