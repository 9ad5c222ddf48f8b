"""A training with one planted fault, to be found with ddptrace: the script of the page "Exercises".

    torchrun --nproc-per-node 2 examples/exercise.py 1 run/exercise-1
    ddptrace analyze run/exercise-1

Fault 0 is none. The page has the questions and, folded, the answers; this script has the faults: do not read on.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace

STEPS, BATCH, WIDTH = 16, 64, 768
NONE, UNEVEN, ONE_BUCKET, SENT_TOO_OFTEN, CHATTY = range(5)
MICROBATCHES, MESSAGES, REPEATS = 4, 40, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", type=int, choices=range(5), help="which fault is planted; 0: none")
    parser.add_argument("out", help="run directory; its old run is replaced")
    said = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    extra = Extra(REPEATS if said.fault == UNEVEN and dist.get_rank() == 1 else 0)
    net = nn.Sequential(extra, *layers, nn.Linear(WIDTH, 1))
    model = DistributedDataParallel(net, bucket_cap_mb=cap_mb(said.fault))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    window = torch.profiler.schedule(wait=8, warmup=1, active=3, repeat=1)
    with ddptrace.trace(said.out, profile=window, overwrite=True, name=f"exercise {said.fault}"):
        for _ in range(STEPS):
            step(model, said.fault)
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


def cap_mb(fault: int) -> float:
    return 1000 if fault == ONE_BUCKET else 3


def step(model: nn.Module, fault: int) -> None:
    for _ in range(MICROBATCHES if fault == SENT_TOO_OFTEN else 1):
        inputs = torch.randn(BATCH, WIDTH)
        loss = nn.functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True))
        loss.backward()
    if fault == CHATTY:
        for _ in range(MESSAGES):
            dist.all_reduce(loss.detach().clone())


class Extra(nn.Module):
    """Computes for as long as so many layers, and leaves the inputs as they are."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(self.layers):
            inputs @ torch.ones(WIDTH, WIDTH)
        return inputs


if __name__ == "__main__":
    main()
