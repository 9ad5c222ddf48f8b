"""Trains small FSDP2 models, each twice, without and with a trace. `fsdp_units.py RUNS KIND...`: each kind's trace goes
to RUNS/KIND, and what rank 0 saw of it to RUNS/KIND.json.

plain: a unit for each of the blocks, and the root. ahead-K: gathered asynchronously, K units ahead in both passes.
hsdp: on a mesh of 2 x 2. mixed: in bfloat16. kept: blocks are not resharded after forward. large: one block is ten
times as wide. whole: the root is the only unit. foreign: as plain, and torch.profiler alone watches; RUNS/foreign has
its files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

import ddptrace
from ddptrace.capture.collectives.unit_sends import SentForUnit, UnitSends
from tests.programs.leaving import leave

STEPS, BLOCKS, WIDTH = 3, 3, 16


class Block(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, inner)
        self.down = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 4, bias=False)
        self.blocks = nn.ModuleList(Block(320 if kind == "large" and at == 1 else 32) for at in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def mesh_of(kind: str) -> DeviceMesh:
    if kind == "hsdp":
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))


def sharded(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model, mesh = Stack(kind), mesh_of(kind)
    dtype = torch.bfloat16 if kind == "mixed" else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    for block in model.blocks if kind != "whole" else ():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=kind != "kept")
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if kind.startswith("ahead-"):
        gather_ahead(model, int(kind.removeprefix("ahead-")))
    return model


def gather_ahead(model: nn.Module, units: int) -> None:
    model._set_unshard_async_op(True)
    blocks = list(model.blocks)
    for at, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[at + 1 : at + 1 + units])
        block.set_modules_to_backward_prefetch(blocks[max(0, at - units) : at][::-1])


def trained(kind: str, run: Path | None, after_step: Callable[[], None] = lambda: None) -> list[torch.Tensor]:
    """Return all losses, and then this rank's shards of the parameters."""
    model = sharded(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(100 + dist.get_rank())
    found = []
    with ddptrace.trace(run, keep=ddptrace.Keep()) if run is not None else torch.enable_grad():
        for step in range(STEPS):
            loss = WAYS[step % 2](model, torch.randn(4, WIDTH)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.detach())
            after_step()
        total = torch.stack(found).mean()
        dist.all_reduce(total)
    return [*found, total, *(parameter.detach().to_local().clone() for parameter in model.parameters())]


def one_way(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def other_way(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


WAYS = one_way, other_way
"""Lines from which steps call the model, in turn."""


def counted(sends: list[int]) -> None:
    """Count the calls of units that go the short way."""
    issued = UnitSends.issued

    def count(self: UnitSends, sent: SentForUnit, *others: Any) -> None:
        sends.append(sent[0])
        issued(self, sent, *others)

    UnitSends.issued = count  # type: ignore[method-assign]


def profiled(run: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        trained("plain", None, profiler.step)
    run.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(run / f"rank-{dist.get_rank()}.json"))


def main(runs: str, *kinds: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Path(runs).mkdir(parents=True, exist_ok=True)
    if "foreign" in kinds:
        profiled(Path(runs) / "foreign")
    short: list[int] = []
    counted(short)
    for kind in (kind for kind in kinds if kind != "foreign"):
        before = dict(vars(FSDPParamGroup))
        short.clear()
        off, on = trained(kind, None), trained(kind, Path(runs) / kind)
        after = vars(FSDPParamGroup)
        names = {name: list(parameter.shape) for name, parameter in Stack(kind).named_parameters()}
        told = {
            "same_bits": all(torch.equal(a, b) for a, b in zip(off, on, strict=True)),
            "as_before": before.keys() == after.keys() and all(after[name] is before[name] for name in before),
            "parameters": names,
            "short": len(short),
        }
        if dist.get_rank() == 0:
            (Path(runs) / f"{kind}.json").write_text(json.dumps(told))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
