"""A small training with a planted mistake: on rank 1 every sample takes 4 ms to read, as from a slow disk.

    torchrun --nproc-per-node 2 -m ddptrace.run --out run/before --profile 5,1,3 examples/slow_data.py

The tutorial finds the mistake with ddptrace, and mends it with `--workers 2`: worker processes that read ahead.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, WIDTH = 40, 16, 1024


class Samples(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, read_s: float) -> None:
        self.read_s = read_s

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.read_s)
        inputs = torch.randn(WIDTH)
        return inputs, inputs.sum().sign()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=0, help="processes of each rank that read ahead")
    workers = parser.parse_args().workers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    samples = Samples(read_s=0.004 if dist.get_rank() == 1 else 0.0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for inputs, targets in DataLoader(samples, BATCH, num_workers=workers):
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
