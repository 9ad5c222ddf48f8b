"""The programs that the device must run: each makes the `step` of a small training on any device.

A step gets its number and returns its loss, on the device or as a number, or None on a rank that has none. Batches are
made before the first step, on the CPU, so that the same program on the CPU trains with the same numbers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddptrace.reducer import BucketedDataParallel

STEPS: Final = 6
WIDTH, LAYERS, ROWS = 64, 4, 16
CAP_MB: Final = 0.01  # less than one layer: each is a bucket

Step = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class Strategy:
    make: Callable[[str], Step]  # called with the device's type
    buckets: int = 0  # in each step; 0 where no reducer has any
    on_cpu: bool = True  # the CPU, over Gloo, trains the same
    ranks: tuple[int, ...] = (2,)
    host_bound: bool = False  # kernels are as short as they are, so that the device waits for the host
    relative_error: float = 0.0  # of losses against the CPU's; 0: the device's own
    gpu_error: float = 0.0  # of losses between two trainings on a GPU, none traced; 0: they have the same bits


def layers(device: str, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(device)


class Unused(nn.Module):
    """A model of which each step leaves another layer out, the same on all ranks."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.layers = layers(device)
        self.calls = 0

    def forward(self, batch: Tensor) -> Tensor:
        self.calls += 1
        for number, layer in enumerate(self.layers):
            batch = batch if number == self.calls % LAYERS else layer(batch)
        return batch


def batches(device: str, count: int = STEPS, of_rank: bool = True) -> list[Tensor]:
    torch.manual_seed(100 + (dist.get_rank() if of_rank else 0))
    return [torch.randn(ROWS, WIDTH).to(device) for _ in range(count)]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def training(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: list[Tensor]) -> Step:
    def step(number: int) -> Tensor:
        loss: Tensor = model(inputs[number]).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


# Data parallel --------------------------------------------------------------------------------------------------------


def stock(model: nn.Module, **options: Any) -> nn.Module:
    return DistributedDataParallel(model, bucket_cap_mb=CAP_MB, **options)


def own(model: nn.Module, **options: Any) -> nn.Module:
    return BucketedDataParallel(model, bucket_cap_mb=CAP_MB, first_bucket_mb=CAP_MB, **options)


def data_parallel(wrap: Callable[..., nn.Module], device: str, **options: Any) -> Step:
    model = wrap(layers(device), **options)
    return training(model, sgd(model), batches(device))


def unused(wrap: Callable[..., nn.Module], device: str) -> Step:
    model = wrap(Unused(device), find_unused_parameters=True)
    return training(model, sgd(model), batches(device))


def no_sync(wrap: Callable[..., nn.Module], device: str) -> Step:
    """Two backwards an update."""
    model = wrap(layers(device))
    optimizer, inputs = sgd(model), batches(device, 2 * STEPS)

    def step(number: int) -> Tensor:
        for half in range(2):
            with model.no_sync() if half == 0 else contextlib.nullcontext():
                loss: Tensor = model(inputs[2 * number + half]).pow(2).mean()
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def hooked(wrap: Callable[..., nn.Module], hook: Callable[[], tuple[Any, Any]], device: str) -> Step:
    model = wrap(layers(device))
    state, function = hook()
    model.register_comm_hook(state, function)
    return training(model, sgd(model), batches(device))


def allreduce_hook() -> tuple[Any, Any]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    return None, allreduce_hook


def fp16_hook() -> tuple[Any, Any]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    return None, fp16_compress_hook


def bf16_hook() -> tuple[Any, Any]:
    """Inside of a function of the program's, as DDP refuses torch's own for backends but NCCL and XCCL."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    def compress_to_bf16(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
        return bf16_compress_hook(state, bucket)

    return None, compress_to_bf16


def power_sgd_hook() -> tuple[Any, Any]:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
    return state, powerSGD_hook


def scaled(wrap: Callable[..., nn.Module], device: str) -> Step:
    """Autocast, AdamW in one kernel, and a scaler of gradients, which reads from the device in each step."""
    model = wrap(layers(device))
    optimizer, inputs = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), batches(device)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)

    def step(number: int) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            loss: Tensor = model(inputs[number]).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step


def foreach(wrap: Callable[..., nn.Module], device: str) -> Step:
    model = wrap(layers(device))
    return training(model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True), batches(device))


def loaded(wrap: Callable[..., nn.Module], device: str) -> Step:
    """Batches from workers, copied from pinned memory while the device computes."""
    model = wrap(layers(device))
    optimizer = sgd(model)
    data = torch.utils.data.TensorDataset(torch.cat(batches("cpu")))
    pins = device != "cpu"
    batches_of = iter(torch.utils.data.DataLoader(data, batch_size=ROWS, num_workers=1, pin_memory=pins))

    def step(number: int) -> Tensor:
        (batch,) = next(batches_of)
        assert batch.is_pinned() == pins
        loss: Tensor = model(batch.to(device, non_blocking=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


# Other strategies -----------------------------------------------------------------------------------------------------


def mesh(device: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device, (dist.get_world_size(),))


def fully_sharded(device: str) -> Step:
    """FSDP2 by layer: it gathers one layer ahead in forward and backward, computes in bfloat16, and frees what it
    gathered after each forward."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model, whole = layers(device), mesh(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    parts: list[Any] = list(model)
    for part in parts:
        fully_shard(part, mesh=whole, reshard_after_forward=True, mp_policy=policy)
    fully_shard(model, mesh=whole, mp_policy=policy)
    for one, following in itertools.pairwise(parts):
        one.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([one])
    return training(model, torch.optim.AdamW(model.parameters(), lr=1e-2), batches(device))


def fully_sharded_before(device: str) -> Step:
    """FSDP1 by layer."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    place = torch.device(device) if device == "cpu" else torch.device(device, 0)
    model = FullyShardedDataParallel(
        layers(device), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=place, forward_prefetch=True
    )
    return training(model, torch.optim.AdamW(model.parameters(), lr=1e-2), batches(device))


def compiled(wrap: Callable[..., nn.Module], device: str) -> Step:
    """By Dynamo and AOTAutograd, with the operators as they are."""
    inner = torch.compile(layers(device), backend="aot_eager")
    assert isinstance(inner, nn.Module)
    model = wrap(inner)
    return training(model, sgd(model), batches(device))


def tensor_parallel(device: str) -> Step:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {str(number): ColwiseParallel() if number % 2 == 0 else RowwiseParallel() for number in range(LAYERS)}
    model = parallelize_module(layers(device), mesh(device), plan)
    return training(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device, of_rank=False))


def pipelined(device: str) -> Step:
    """One forward, one backward: each rank has its layers, and sends activations and their gradients."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = LAYERS // ranks
    model = nn.Sequential(*layers(device)[rank * each : (rank + 1) * each])
    stage = PipelineStage(model, rank, ranks, torch.device(device))
    schedule = Schedule1F1B(stage, n_microbatches=ranks, loss_fn=lambda made, target: (made - target).pow(2).mean())
    optimizer, inputs = sgd(model), batches(device, of_rank=False)
    target = torch.zeros(ROWS, WIDTH).to(device)

    def step(number: int) -> Tensor | None:
        losses: list[Tensor] = []
        first, last = rank == 0, rank == ranks - 1
        schedule.step(*([inputs[number]] if first else []), **({"target": target, "losses": losses} if last else {}))
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().detach() if last else None

    return step


def experts(device: str) -> Step:
    """Each rank has one layer, an expert: rows go to it and come back, all to all."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    model = layers(device, seed=dist.get_rank())
    optimizer, inputs = sgd(model), batches(device)
    split = [ROWS // dist.get_world_size()] * dist.get_world_size()

    def step(number: int) -> Tensor:
        there = all_to_all_single_autograd(inputs[number], split, split, dist.group.WORLD)
        loss: Tensor = all_to_all_single_autograd(model(there), split, split, dist.group.WORLD).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


REDUCERS: Final[Mapping[str, Callable[..., nn.Module]]] = {"stock": stock, "own": own}
HALF: Final = 1e-3  # half precision rounds what it computes in another order differently
POWER_SGD: Final = 1e-2
"""Seven trainings on an H100 without a trace ended with five different losses, up to 1.8e-3 apart, of the same first
five. Presumably, since the hook lets go of memory of one stream which its callbacks still read on others."""


def strategies() -> dict[str, Strategy]:
    made = {}
    for name, wrap in REDUCERS.items():
        of = {
            "plain": Strategy(partial(data_parallel, wrap), LAYERS, ranks=(2, 4)),
            "no_sync": Strategy(partial(no_sync, wrap), LAYERS, host_bound=True),
            "unused": Strategy(partial(unused, wrap), LAYERS),
            "allreduce_hook": Strategy(partial(hooked, wrap, allreduce_hook), LAYERS),
            "fp16_hook": Strategy(partial(hooked, wrap, fp16_hook), LAYERS, relative_error=HALF),
            "powersgd": Strategy(partial(hooked, wrap, power_sgd_hook), LAYERS, on_cpu=False, gpu_error=POWER_SGD),
            "scaled": Strategy(partial(scaled, wrap), LAYERS, relative_error=5e-2),
            "loaded": Strategy(partial(loaded, wrap), LAYERS),
        }
        made |= {f"{name}-{what}": strategy for what, strategy in of.items()}
    return made | {
        "stock-bf16_hook": Strategy(partial(hooked, stock, bf16_hook), LAYERS, relative_error=HALF),
        "stock-foreach": Strategy(partial(foreach, stock), LAYERS),
        "stock-static": Strategy(partial(data_parallel, stock, static_graph=True), LAYERS),
        "own-compiled": Strategy(partial(compiled, own), LAYERS),
        "fsdp1": Strategy(fully_sharded_before),
        "fsdp2": Strategy(fully_sharded, ranks=(2, 4), relative_error=5e-2),
        "tensor": Strategy(tensor_parallel, host_bound=True),
        "pipeline": Strategy(pipelined, ranks=(2, 4)),
        "all_to_all": Strategy(experts),
    }


STRATEGIES: Final[Mapping[str, Strategy]] = strategies()
