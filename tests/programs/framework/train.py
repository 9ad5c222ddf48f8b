"""A program that is a part of the library. `train.py RUN`."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

import ddptrace
from framework.loop import fit


def main(run: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    with ddptrace.trace(run):
        fit(nn.Linear(8, 8), lambda out: out.pow(2).mean())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
