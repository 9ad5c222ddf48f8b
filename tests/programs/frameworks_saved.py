"""What the programs of the frameworks leave for the test: the parameters, and how often the framework updated them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


def save_and_part(out: str, model: nn.Module, updates: int) -> None:
    """Save what this rank has come to as `OUT-<rank>.pt`, and end the process group."""
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    torch.save({"parameters": parameters, "updates": updates}, f"{out}-{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()
