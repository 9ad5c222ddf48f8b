"""Data parallelism written by hand, one all-reduce per gradient, traced.

    torchrun --nproc-per-node 2 examples/2_hand_written_all_reduce.py run/by-hand
    ddptrace analyze run/by-hand

No DistributedDataParallel, so no buckets: each gradient travels alone, after the whole backward is over. The analysis
shows steps and phases found by themselves, one collective per gradient, and that hardly any of the communication is
hidden behind computation. Compare with `bucket_cap_mb` of the first example.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn

import ddptrace

STEPS, BATCH = 30, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="run/by-hand", help="run directory; its old run is replaced")
    out = parser.parse_args().out

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same model on every rank
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1))
    torch.manual_seed(dist.get_rank())  # and different data

    with ddptrace.trace(out, profile=torch.profiler.schedule(wait=5, warmup=1, active=3, repeat=1), overwrite=True):
        train(model)
    dist.destroy_process_group()


def train(model: nn.Module) -> None:
    """Learn the sum of the inputs."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, STEPS + 1):
        inputs = torch.randn(BATCH, 256)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True) / 16)
        loss.backward()
        for gradient in [p.grad for p in model.parameters() if p.grad is not None]:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}   loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
