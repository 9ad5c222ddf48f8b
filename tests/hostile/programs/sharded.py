"""Models that are spread over the ranks, and their checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import STEPS, WIDTH, batch, ddp, join, network, sgd, steps, train


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = STEPS) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(batch()).pow(2).mean()
        loss.backward()
        optimizer.step()
        keep(loss)


@program(ranks=2)
def fsdp_of_old() -> None:
    """Trains FullyShardedDataParallel, with each way of sharding and with accumulation."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    join()
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        model = FullyShardedDataParallel(
            network(),
            sharding_strategy=strategy,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            use_orig_params=True,
            device_id=torch.device("cpu"),
        )
        optimizer = sgd(model)
        trained(model, optimizer, 3)
        with model.no_sync():
            model(batch()).sum().backward()
        trained(model, optimizer, 2)
        with FullyShardedDataParallel.summon_full_params(model):
            keep(*(parameter.clone() for parameter in model.parameters()))


@program(ranks=2)
def fsdp() -> None:
    """Trains fully_shard, with mixed precision, accumulation, prefetch and a saved state."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    join()
    mesh = dist.init_device_mesh("cpu", (2,))
    for options in ({}, {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}, {"reshard_after_forward": 1}):
        model = network()
        for part in model:
            if isinstance(part, nn.Linear):
                fully_shard(part, mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **options)
        optimizer = sgd(model)
        model.set_modules_to_forward_prefetch([model[0]])
        trained(model, optimizer, 3)
        model.set_requires_gradient_sync(False)
        model(batch()).sum().backward()
        model.set_requires_gradient_sync(True)
        trained(model, optimizer, 2)
        keep(type(model).__name__, *(parameter.full_tensor() for parameter in model.parameters()))


@program(ranks=2)
def fsdp_of_odd_models() -> None:
    """Trains fully_shard with units in units, a parameter of two modules, a frozen unit, modules that share a unit,
    recomputation, uneven shards, two uses of a unit in one forward, and evaluation between steps."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    join()
    model = network(layers=5)
    first, *inner, last = (part for part in model if isinstance(part, nn.Linear))
    first.weight = inner[0].weight
    inner[1].requires_grad_(False)
    again = checkpoint_wrapper(inner[2])
    model[6] = again
    twice = nn.Sequential(model, nn.Linear(2, 3), nn.Linear(3, WIDTH), model)
    for unit in ([first, inner[0], inner[1]], again, last, model, twice[1]):
        fully_shard(unit)
    fully_shard(twice)
    optimizer = torch.optim.AdamW(parameter for parameter in twice.parameters() if parameter.requires_grad)
    for _ in range(2):
        trained(twice, optimizer, 2)
        with torch.no_grad():
            keep(twice(batch()))
    keep(*(parameter.to_local() if isinstance(parameter, DTensor) else parameter for parameter in twice.parameters()))


@program(ranks=2)
def replicated() -> None:
    """Trains with the composable replicate, and with checkpoint wrappers inside."""
    from torch.distributed._composable.replicate import replicate
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    join()
    model = network()
    model[0] = checkpoint_wrapper(model[0])
    train(replicate(model))


@program(ranks=2)
def checkpoints_in_the_middle() -> None:
    """Saves and loads distributed checkpoints in the middle, also while it trains on."""
    join()
    folder = Path(os.environ["HOSTILE_FOLDER"]) / "checkpoint"
    model = ddp()
    optimizer = torch.optim.AdamW(model.parameters())
    saving: Any = None
    beside: Any = dist.new_group([0, 1])
    for step in steps(model, optimizer):
        weights, state = get_state_dict(model, optimizer)
        if step == 1:
            checkpoints.save({"model": weights, "optimizer": state}, checkpoint_id=folder / "first")
        if step == 2:
            saving = checkpoints.async_save({"model": weights}, checkpoint_id=folder / "second", process_group=beside)
    keep(type(saving.result()).__name__)
    other = ddp()
    again = torch.optim.AdamW(other.parameters())
    weights, state = get_state_dict(other, again)
    checkpoints.load({"model": weights, "optimizer": state}, checkpoint_id=folder / "first")
    set_state_dict(other, again, model_state_dict=weights, optim_state_dict=state)
    train(other, again)
    torch.save(model.state_dict(), folder / f"plain-{dist.get_rank()}")
    other.load_state_dict(torch.load(folder / f"plain-{dist.get_rank()}"))
    train(other, again)


@program(ranks=2)
def pipelined() -> None:
    """Trains a pipeline of two stages, on several schedules."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank = join()
    torch.manual_seed(1)
    parts = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)]
    for kind in (ScheduleGPipe, Schedule1F1B):
        stage = PipelineStage(parts[rank], rank, 2, torch.device("cpu"))
        schedule: Any = kind(stage, 4, loss_fn=lambda out, target: (out - target).pow(2).mean())
        optimizer = torch.optim.SGD(parts[rank].parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            inputs = torch.randn(8, WIDTH)
            if rank == 0:
                schedule.step(inputs)
            else:
                schedule.step(target=torch.ones(8, 2), losses=losses)
            optimizer.step()
            keep(*losses)
    keep(parts[rank])
