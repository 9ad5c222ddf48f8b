"""Trains with CUDA graphs, without a trace and under one: `graphs.py RUN OUT WAY`. It needs a GPU.

WAY is `whole` (a graph of the whole step of stock DDP), `graphed` (`torch.cuda.make_graphed_callables`), `compiled`
(`torch.compile` captures graphs by itself) or `foreign` (a library captures one by CUDA's own functions, and takes its
time). Rank R leaves `told-R.json`: the losses of both trainings.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.device.device import HERE

WARM, STEPS = 11, 8  # DDP is to be captured after ten steps or more
WIDTH, ROWS = 256, 32
GLOBAL: Final = 0  # CUDA's mode of a capture that no thread may disturb
CAPTURED_S: Final = 2.0  # in which ddptrace looks for events several times

Train = Callable[[nn.Module, list[Tensor]], list[Tensor]]


def whole(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        wrapped = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        for _ in range(WARM):
            optimizer.zero_grad()
            stepped(wrapped, optimizer, batches[0])
    torch.cuda.current_stream().wait_stream(side)
    batch, graph = batches[0].clone(), torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        loss = stepped(wrapped, optimizer, batch)
    losses = []
    for each in batches:
        batch.copy_(each)
        graph.replay()
        losses.append(loss.clone())
    return losses


def graphed(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    made = torch.cuda.make_graphed_callables(model, (batches[0].clone(),))  # type: ignore[no-untyped-call]
    return eagerly(made, batches)


def compiled(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    return eagerly(DistributedDataParallel(torch.compile(model, mode="reduce-overhead")), batches)  # type: ignore[arg-type]


def foreign(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    losses = eagerly(DistributedDataParallel(model), batches)
    runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
    stream, graph = ctypes.c_void_p(torch.cuda.Stream().cuda_stream), ctypes.c_void_p()
    assert runtime.cudaStreamBeginCapture(stream, GLOBAL) == 0
    time.sleep(CAPTURED_S)
    assert runtime.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0
    return losses


def eagerly(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in batches:
        losses.append(stepped(model, optimizer, batch).clone())
        optimizer.zero_grad()
    return losses


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


WAYS: Final[dict[str, Train]] = {one.__name__: one for one in (whole, graphed, compiled, foreign)}


def trained(way: str, around: AbstractContextManager[Any]) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).to(HERE.name)
    torch.manual_seed(dist.get_rank())
    batches = [torch.randn(ROWS, WIDTH).to(HERE.name) for _ in range(STEPS)]
    with around:
        losses = WAYS[way](model, batches)
        HERE.synchronize()
    return [float(loss) for loss in losses]


def main() -> None:
    run, out, way = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    HERE.begin()
    told = {"untraced": trained(way, nullcontext()), "losses": trained(way, ddptrace.trace(run))}
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    HERE.end()


main()
