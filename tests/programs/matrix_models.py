"""Cells in which torch or ddptrace issues the collectives: data parallel, sharded and distributed tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.matrix_cells import Cell, Expected
from tests.programs.matrix_operations import Place

LOCAL_NBYTES = 4 * 4 * 4


def models(place: Place) -> Iterator[Cell]:
    """What they must leave, the witnesses say."""

    def cell(name: str, run: Callable[[], list[torch.Tensor]], *, python: bool | None) -> Cell:
        return Cell(name, run, None, python=python)

    def stock(**options: Any) -> nn.Module:
        return DistributedDataParallel(network(), process_group=place.group, **options)

    def hooked() -> nn.Module:
        model = DistributedDataParallel(network(), process_group=place.group)
        model.register_comm_hook(None, allreduce_hook)
        return model

    def sharded() -> nn.Module:
        model, mesh = network(), DeviceMesh.from_group(place.group, "cpu")
        for layer in (model[0], model):
            fully_shard(layer, mesh=mesh)
        return model

    yield cell("DistributedDataParallel", lambda: trained(stock()), python=False)
    yield cell("DistributedDataParallel, unused", lambda: trained(stock(find_unused_parameters=True)), python=False)
    yield cell("DistributedDataParallel with a hook", lambda: trained(hooked()), python=None)
    yield cell("BucketedDataParallel", lambda: trained(ours(place)), python=True)
    yield cell("fully_shard", lambda: trained(sharded()), python=True)
    yield from tensors(place)


def tensors(place: Place) -> Iterator[Cell]:
    """Redistribution of distributed tensors, of which each rank has a part of LOCAL_NBYTES."""
    one, all_, gathered = LOCAL_NBYTES, place.size * LOCAL_NBYTES, "all_gather_into_tensor_coalesced"
    for before, after, op, sent, taken in (
        (Shard(0), Replicate(), gathered, one, all_),
        (Shard(0), Shard(1), gathered, one, all_),  # Gloo: instead of an all-to-all
        (Partial(), Replicate(), "all_reduce", one, 0),
        (Partial(), Shard(0), "reduce_scatter_tensor_coalesced", one, one // place.size),
    ):

        def run(before: Any = before, after: Any = after) -> list[torch.Tensor]:
            mesh = DeviceMesh.from_group(place.group, "cpu")
            tensor = DTensor.from_local(torch.ones(4, 4) + place.rank, mesh, [before])
            return [tensor.redistribute(mesh, [after]).to_local()]

        call = Expected(op, sent, taken, place.name)
        yield Cell(f"DTensor, {before} to {after}", run, (call,), python=False)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))


def ours(place: Place) -> nn.Module:
    """Always another one over its group, so that its ranks compare their steps in every backward."""
    ddptrace.BucketedDataParallel(network(), process_group=place.group)
    return ddptrace.BucketedDataParallel(network(), process_group=place.group)


def trained(model: nn.Module) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
