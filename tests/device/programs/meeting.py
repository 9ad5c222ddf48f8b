"""Adds up the ranks' numbers on the device: `meeting.py OUT`. Rank 0 leaves the sum, and what the device is, in OUT."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.device.device import HERE


def main() -> None:
    HERE.begin()
    number = torch.tensor([dist.get_rank() + 1.0]).to(HERE.name)
    dist.all_reduce(number)
    told = {"sum": number.item(), "ranks": dist.get_world_size(), "torch": torch.__version__, "device": HERE.name}
    if not HERE.has_ledger:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[attr-defined]
        told |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "nccl": nccl}
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(told))
    HERE.end()


main()
