"""When gradients are ready, noted by the program's own hooks beside the trace. `ready_beside.py RUNS`.

Beside each run, `RUN.json` has of rank 0's backwards: parameters in the order in which their gradients came, when, and
on how many of the parameters the trace had a hook.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

BACKWARDS = 5

Step = Callable[[int], None]
"""The n-th backward."""


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
        self.drops = False

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers[: 4 if self.drops else 5]:
            inputs = layer(inputs)
        return inputs


def backward(model: nn.Module) -> None:
    model(torch.randn(8, 64)).pow(2).mean().backward()


def alone(model: DistributedDataParallel) -> Iterator[None]:
    while True:
        backward(model)
        yield


def accumulating(model: DistributedDataParallel) -> Iterator[None]:
    """Every second one is not synchronised."""
    for index in range(BACKWARDS):
        with model.no_sync() if index % 2 else nullcontext():
            backward(model)
        yield


def accumulating_outside(model: DistributedDataParallel) -> Iterator[None]:
    """The forward alone is in `no_sync`: as backward begins, nothing tells that it will not synchronise."""
    for index in range(BACKWARDS):
        with model.no_sync() if index == 2 else nullcontext():
            loss = model(torch.randn(8, 64)).pow(2).mean()
        loss.backward()
        yield


def joined(model: DistributedDataParallel) -> Iterator[None]:
    """A second model is trained from the third one on."""
    other = DistributedDataParallel(Layers())
    for index in range(BACKWARDS):
        backward(model)
        if index >= 2:
            backward(other)
        yield


def dropping(model: DistributedDataParallel) -> Iterator[None]:
    """A layer that is not used any more."""
    for index in range(BACKWARDS):
        model.module.drops = index >= 2
        backward(model)
        yield


CASES: dict[str, Callable[[DistributedDataParallel], Iterator[None]]] = {
    one.__name__: one for one in (alone, accumulating, accumulating_outside, joined, dropping)
}
"""By name, what trains: from one backward of the first model to the next."""


def main(runs: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, case in CASES.items():
        told = train(case, runs / name)
        if dist.get_rank() == 0:
            (runs / f"{name}.json").write_text(json.dumps(told))
    leave()


def train(case: Callable[[DistributedDataParallel], Iterator[None]], run: Path) -> list[tuple[list[list[int]], int]]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Layers(), bucket_cap_mb=0.03, find_unused_parameters=case is dropping)
    parameters, seen = list(model.parameters()), list[list[int]]()
    for index, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(lambda _, i=index: seen.append([i, time.perf_counter_ns()]))
    told = []
    with ddptrace.trace(run):
        training = case(model)
        for _ in range(BACKWARDS):
            next(training)
            told.append(
                (list(seen), sum(len(parameter._post_accumulate_grad_hooks or ()) - 1 for parameter in parameters))
            )
            seen.clear()
            for parameter in parameters:
                parameter.grad = None
    return told


if __name__ == "__main__":
    main(Path(sys.argv[1]))
