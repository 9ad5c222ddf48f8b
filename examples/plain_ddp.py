"""An ordinary data-parallel script, as one finds them: it knows nothing of ddptrace.

    torchrun --nproc-per-node 2 examples/plain_ddp.py

Two spirals, a small network, stock DistributedDataParallel. The third example runs it unchanged.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH = 2, 128


def two_spirals(count: int = 4096) -> TensorDataset:
    """Points on two arms that wind around each other, and which arm each is on."""
    arm = torch.arange(count) % 2
    angle = torch.rand(count).sqrt() * 3 * math.pi
    turned = angle + arm * math.pi
    points = torch.stack([turned.cos(), turned.sin()], 1) * angle[:, None] / math.pi
    return TensorDataset(points + 0.05 * torch.randn(count, 2), arm)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    data = two_spirals()
    hidden = [layer for _ in range(2) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    network = nn.Sequential(nn.Linear(2, 1024), nn.ReLU(), *hidden, nn.Linear(1024, 2))
    model = DistributedDataParallel(network, bucket_cap_mb=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for points, arm in DataLoader(data, BATCH, sampler=sampler):
            loss = nn.functional.cross_entropy(model(points), arm)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}   loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
