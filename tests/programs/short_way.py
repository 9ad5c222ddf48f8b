"""The same trainings traced thrice: all buckets by compiled code, by Python on the short way where that is known, and
on the long way. `short_way.py RUNS`.

Beside each run, `RUN.json` has how many buckets of rank 0 had gone the short way by then, and how many compiled code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from ddptrace.capture.collectives import compiled
from ddptrace.capture.collectives.bucket_sends import BucketSends, CompiledSends
from tests.programs.leaving import leave

STEPS = 16


class Mixed(nn.Module):
    """Gradients of two data types, and a sparse one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 64, sparse=True)
        self.single = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        self.wide = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).double()

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.wide(self.single(self.words(tokens)).double())
        return hidden


class Dropping(nn.Module):
    """Every second time one layer gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.words = nn.Embedding(50, 64)
        self.times = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.times += 1
        hidden: Tensor = self.words(tokens)
        for layer in self.layers[self.times % 2 :]:
            hidden = layer(hidden)
        return hidden


def plain() -> DistributedDataParallel:
    return DistributedDataParallel(Mixed(), bucket_cap_mb=0.02)


def uniform() -> DistributedDataParallel:
    return DistributedDataParallel(
        nn.Sequential(nn.Embedding(50, 64), *(nn.Linear(64, 64) for _ in range(6))), bucket_cap_mb=0.02
    )


def unused() -> DistributedDataParallel:
    return DistributedDataParallel(Dropping(), bucket_cap_mb=0.02, find_unused_parameters=True)


def compressed() -> DistributedDataParallel:
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 64)), bucket_cap_mb=0.01)
    model.register_comm_hook(None, fp16_compress_hook)
    return model


def beside() -> DistributedDataParallel:
    """The program itself sends in the midst of backward, from the thread and of the kind that C++ does."""
    model = plain()
    model.module.single[1].weight.register_post_accumulate_grad_hook(_send)
    return model


def _send(_: Tensor) -> None:
    dist.all_reduce(torch.ones(64, 64), async_op=True).wait()


WAYS = ("compiled", "short", "long")
CASES: dict[str, Callable[[], DistributedDataParallel]] = {
    "plain": plain, "uniform": uniform, "unused": unused, "compressed": compressed, "beside": beside,
}  # fmt: skip


def main(runs: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    issued, learn, end = BucketSends.issued, BucketSends.learn, CompiledSends.end
    library, counts = compiled.load(), [0, 0]

    def counted(*args: Any) -> None:
        counts[0] += 1
        issued(*args)

    def taken(sends: CompiledSends) -> list[int]:
        sent = end(sends)
        counts[1] += len(sent)
        return sent

    BucketSends.issued = counted  # type: ignore[method-assign]
    CompiledSends.end = taken  # type: ignore[method-assign]
    for name, make in CASES.items():
        counts[:] = 0, 0
        for way in WAYS:
            compiled.load = lambda way=way: library if way == "compiled" else None  # type: ignore[misc]
            BucketSends.learn = _ignore if way == "long" else learn  # type: ignore[method-assign, assignment]
            train(make(), runs / f"{name}-{way}")
            if dist.get_rank() == 0:
                (runs / f"{name}-{way}.json").write_text(json.dumps(counts))
    leave()


def _ignore(*_: Any, **__: Any) -> None:
    """So that no bucket is the like of what is known."""


def train(model: DistributedDataParallel, run: Path) -> None:
    torch.manual_seed(0)
    with ddptrace.trace(run):
        for _ in range(STEPS):
            model(torch.randint(50, (4,))).pow(2).mean().backward()
            for parameter in model.parameters():
                parameter.grad = None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
