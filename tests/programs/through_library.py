"""Trains with a library that is installed in PACKAGES. `through_library.py RUN PACKAGES`."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import ddptrace
from tests.programs.leaving import leave


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def loss_of(out: torch.Tensor) -> torch.Tensor:
    loss = out.pow(2).mean()
    dist.all_reduce(loss.detach())  # in the program
    return loss


def main(run: str, packages: str) -> None:
    sys.path.insert(0, packages)
    from framework.loop import backward, fit

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    with ddptrace.trace(run):
        fit(Net(), loss_of)  # fit
        sharded = fully_shard(Net())
        out = sharded(torch.ones(4, 8))  # sharded forward
        backward(out.sum())  # sharded backward
        get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))  # saved
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
