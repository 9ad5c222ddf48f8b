"""Trainings whose gradients are sent in ways that mislead a sum, a run in OUT for each. `gradients_sent.py OUT`.

The head has 32 * 10 + 10 = 330 float32 parameters, the rest (64 * 32 + 32) = 2080: 9640 bytes together. In the last run
rank 1 dies in its fourth backward.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.rpc_workers import fork_workers

STEPS = 3
CAP_MB = 1310 / 2**20  # the head is one bucket, the rest the other


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train(model: nn.Module, steps: int = STEPS) -> None:
    optimizer = torch.optim.SGD((one for one in model.parameters() if one.requires_grad), lr=0.01)
    for _ in range(steps):
        model(torch.randn(16, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def frozen(wrapper: Any) -> None:
    module = net()
    module[0].requires_grad_(False)
    train(wrapper(module, bucket_cap_mb=CAP_MB))


def halved(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer().half(), async_op=True)
    assert work is not None
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda sent: sent.value()[0].float())
    return summed


def builtin() -> None:
    """A hook of which Python sees nothing."""
    model = DistributedDataParallel(net(), bucket_cap_mb=CAP_MB)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    train(model)


def killed() -> None:
    model = DistributedDataParallel(net(), bucket_cap_mb=CAP_MB)
    train(model)
    if dist.get_rank() == 1:  # once the head's bucket is on its way
        model.module[0].weight.register_post_accumulate_grad_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    train(model, 1)


def main(rank: int) -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder / 'store'}", rank=rank, world_size=2)
    hooked = DistributedDataParallel(net(), bucket_cap_mb=CAP_MB)
    hooked.register_comm_hook(None, halved)
    for name, act in {
        "frozen": lambda: frozen(DistributedDataParallel),
        "frozen-bucketed": lambda: frozen(ddptrace.BucketedDataParallel),
        "builtin": builtin,
        "hooked-before": lambda: train(hooked),
        "killed": killed,
    }.items():
        with ddptrace.trace(folder / name):
            act()


if __name__ == "__main__":
    print(*fork_workers(2, main))
