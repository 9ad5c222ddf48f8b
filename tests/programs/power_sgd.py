"""PowerSGD over Gloo in several buckets: two vanilla steps and six compressed ones. Prints each rank's buckets."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from ddptrace import BucketedDataParallel

LAYERS, WIDTH, TIMEOUT_S = 6, 512, 10.0


def main(find_unused: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = BucketedDataParallel(
        nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))),
        bucket_caps_mb=[1], timeout_s=TIMEOUT_S, find_unused_parameters=find_unused,
    )  # fmt: skip
    model.register_comm_hook(PowerSGDState(None, 2, start_powerSGD_iter=2), powerSGD_hook)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(8):
        model.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    of_first = gradients.clone()
    dist.broadcast(of_first, 0)
    print(f"{len(model.reducer.layout.buckets)} buckets, same {torch.equal(gradients, of_first)}", flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # Gloo now and then aborts while Python shuts down


if __name__ == "__main__":
    main(sys.argv[1] == "find_unused")
