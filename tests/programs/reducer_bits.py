"""Trains with stock DDP and with our reducer, from the same seeds. `reducer_bits.py OUT CASE...`

Saves, for each case and wrapper, every gradient and buffer after every backward, every loss and the final parameters.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddptrace.reducer import BucketedDataParallel, LayerDrop
from tests.programs.leaving import leave

STEPS, CAP_MB = 20, 0.02
Wrapper = Any


class Branches(nn.Module):
    """Uses one of its branches; which one differs between ranks and steps. The third is used by nobody for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(32, 64)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)) for _ in range(3))

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        out: Tensor = self.branches[branch_of(step)](torch.relu(self.stem(inputs)))
        return out


def branch_of(step: int) -> int:
    return (step + dist.get_rank()) % (2 if step < STEPS // 2 else 3)


class Plain(nn.Module):
    """Linear layers and a norm, and the same linear layer twice where `twice`."""

    def __init__(self, *, twice: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 96), nn.Linear(96, 96), nn.Linear(96, 32), nn.Linear(32, 8)])
        self.norm = nn.LayerNorm(96)
        self.twice = twice

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        first, second, third, last = self.layers
        hidden = torch.tanh(self.norm(second(torch.relu(first(inputs)))))
        hidden = second(hidden) if self.twice else hidden
        out: Tensor = last(third(hidden))
        return out


class Norms(nn.Module):
    """BatchNorm: its buffers are rank 0's before each forward that follows a synchronised one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64)
        )
        self.head = nn.Linear(64, 8)

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        out: Tensor = self.head(self.net(inputs))
        return out


class Dtypes(nn.Module):
    """Parameters of four dtypes, between each other."""

    def __init__(self) -> None:
        super().__init__()
        kinds = [torch.float32, torch.bfloat16, torch.float32, torch.float64, torch.float16, torch.float32]
        self.layers = nn.ModuleList(nn.Linear(48, 48).to(kind) for kind in kinds)
        self.stem, self.head = nn.Linear(32, 48), nn.Linear(48, 8)

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        hidden = self.stem(inputs)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden.to(layer.weight.dtype)))
        out: Tensor = self.head(hidden.float())
        return out


class Images(nn.Module):
    """Convolutions whose weights, and so gradients, lie channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(2, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 2))
        self.convolutions.to(memory_format=torch.channels_last)
        self.head = nn.Linear(16, 8)

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        out: Tensor = self.head(self.convolutions(inputs.view(-1, 2, 4, 4)).flatten(1))
        return out


class Towers(nn.Module):
    """Three towers side by side, built in another order from the middle of the training on, and so their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)) for _ in range(3))

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        order = range(3) if step < STEPS // 2 else reversed(range(3))
        outs = {at: self.towers[at](inputs) for at in order}
        return torch.tanh(outs[0] + outs[1] + outs[2])


class Residual(nn.Module):
    """Blocks of which each step leaves some out, the same on every rank."""

    drop = LayerDrop(0.5, seed=3)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(32, 64), nn.Linear(64, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4))

    def dropped(self, step: int) -> list[nn.Module]:
        return [self.blocks[at] for at in self.drop.chosen(step, len(self.blocks))]

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        hidden, dropped = self.stem(inputs), self.dropped(step)
        for block in self.blocks:
            hidden = hidden if block in dropped else hidden + block(hidden)
        out: Tensor = self.head(hidden)
        return out


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module] = Plain
    both: dict[str, Any] = field(default_factory=dict)  # arguments of both wrappers
    stock: dict[str, Any] = field(default_factory=dict)  # arguments of stock DDP alone
    own: Callable[[], dict[str, Any]] = dict  # arguments of ours alone
    prepare: Callable[[Wrapper], None] = lambda wrapped: None
    micro_batches: int = 1
    every_syncs: bool = False  # micro batches without no_sync
    set_to_none: bool = True
    warm: bool = False  # two backwards without an update first: then both have rebuilt their buckets
    freezes: bool = False
    drops: bool = False
    layouts: int = 2  # that our reducer is to have gone through


def hooked(hook: Any, state: Callable[[], Any] = lambda: None) -> Callable[[Wrapper], None]:
    return lambda wrapped: wrapped.register_comm_hook(state(), hook)


def bf16(state: object, bucket):  # type: ignore[no-untyped-def] # torch wants GradBucket itself, not its name
    """torch's own, under another name: stock DDP refuses the one it knows on CPU."""
    return default_hooks.bf16_compress_hook(state, bucket)  # type: ignore[arg-type]


def power_sgd() -> powerSGD_hook.PowerSGDState:
    return powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=4, min_compression_rate=1.1
    )


SMALL = {"bucket_cap_mb": CAP_MB}
UNUSED = {"find_unused_parameters": True} | SMALL
CASES = {
    "plain": Case(both=SMALL),
    "gradients kept apart": Case(both=SMALL, own=lambda: {"gradient_as_bucket_view": False}),
    "both with views": Case(both=SMALL | {"gradient_as_bucket_view": True}),
    "default caps": Case(),
    "static caps": Case(stock={"bucket_cap_mb_list": [0.01, 0.03]}, own=lambda: {"bucket_caps_mb": [0.01, 0.03]}),
    "zeroed in place": Case(both=SMALL, set_to_none=False),
    "no_sync": Case(both=SMALL, micro_batches=3),
    "accumulated in sync": Case(both=SMALL | {"gradient_as_bucket_view": True}, micro_batches=3, every_syncs=True),
    "unused": Case(Branches, both=UNUSED, layouts=1),
    "unused and no_sync": Case(Branches, both=UNUSED | {"gradient_as_bucket_view": True}, micro_batches=2, layouts=1),
    "layers dropped": Case(Residual, both=SMALL, stock={"find_unused_parameters": True}, drops=True),
    "layers dropped and no_sync": Case(
        Residual,
        both=SMALL | {"gradient_as_bucket_view": True},
        stock={"find_unused_parameters": True},
        drops=True,
        micro_batches=2,
        layouts=1,
    ),
    "order drifts": Case(Towers, both=SMALL, layouts=3),
    "dtypes": Case(Dtypes, both=SMALL),
    "used twice": Case(lambda: Plain(twice=True), both=SMALL),
    "buffers": Case(Norms, both=SMALL),
    "buffers and no_sync": Case(Norms, both=SMALL, micro_batches=3),
    "buffers left alone": Case(Norms, both=SMALL | {"broadcast_buffers": False}),
    "channels last": Case(Images, both={"bucket_cap_mb": 0.005}),
    "frozen for a while": Case(both=SMALL, stock={"find_unused_parameters": True}, freezes=True, layouts=6),
    "allreduce hook": Case(both=SMALL, prepare=hooked(default_hooks.allreduce_hook)),
    "fp16 hook": Case(both=SMALL, prepare=hooked(default_hooks.fp16_compress_hook)),
    "bf16 hook": Case(both=SMALL, prepare=hooked(bf16)),
    # in one bucket: its callbacks wait for further collectives on Gloo's two threads, and two buckets would take both
    "PowerSGD hook": Case(prepare=hooked(powerSGD_hook.powerSGD_hook, power_sgd), warm=True),
    "groups in turn": Case(both=SMALL, own=lambda: {"process_group": [dist.new_group() for _ in range(3)]}),
    # equal layouts, for any number of ranks: where a sum has more than two terms, their order follows the layout
    "equal layouts": Case(both=SMALL, own=lambda: {"first_bucket_mb": CAP_MB}, warm=True),
    "equal layouts, no_sync": Case(both=SMALL, own=lambda: {"first_bucket_mb": CAP_MB}, warm=True, micro_batches=2),
    "equal layouts, buffers": Case(
        Norms, both={"bucket_cap_mb": 0.005}, own=lambda: {"first_bucket_mb": 0.005}, warm=True
    ),
    "equal layouts, dtypes": Case(Dtypes, both=SMALL, own=lambda: {"first_bucket_mb": CAP_MB}, warm=True),
    "equal layouts, unused": Case(Branches, both={"find_unused_parameters": True, "bucket_cap_mb": 1e-6}, layouts=1),
}


def train(case: Case, wrapped: Wrapper, own: bool) -> Iterator[Tensor | None]:
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    case.prepare(wrapped)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(2 if case.warm else 0):
        wrapped(torch.randn(16, 32), 0).pow(2).mean().backward()
        optimizer.zero_grad()
    for step in range(STEPS):
        if case.freezes:
            wrapped.module.layers[1].requires_grad_(not 5 <= step < 10)
        for micro in range(case.micro_batches):
            syncs = case.every_syncs or micro == case.micro_batches - 1
            at = step * case.micro_batches + micro if case.drops else step
            leaving_out = (
                wrapped.dropping(wrapped.module.dropped(at)) if case.drops and own else contextlib.nullcontext()
            )
            with contextlib.nullcontext() if syncs else wrapped.no_sync(), leaving_out:
                loss = wrapped(torch.randn(16, 32), at).pow(2).mean()
                loss.backward()
            yield loss.detach()
        yield from (None if p.grad is None else p.grad.detach().clone() for p in wrapped.parameters())
        yield from (buffer.clone() for buffer in wrapped.buffers())
        optimizer.step()
        optimizer.zero_grad(set_to_none=case.set_to_none)
    yield from (parameter.detach().clone() for parameter in wrapped.parameters())


def run(case: Case, own: bool) -> dict[str, Any]:
    torch.manual_seed(1 + dist.get_rank())  # ranks begin apart: both wrappers make them equal
    module = case.model()
    if own:
        wrapped: Wrapper = BucketedDataParallel(module, **case.both, **case.own())
    else:
        wrapped = DistributedDataParallel(module, **case.both, **case.stock)
    values = list(train(case, wrapped, own))
    layouts = wrapped.reducer.layout.number + 1 if own else None
    return {"values": values, "layout": layout_of(wrapped), "layouts": layouts, "keys": list(wrapped.state_dict())}


def layout_of(wrapped: Wrapper) -> list[list[int]]:
    if isinstance(wrapped, BucketedDataParallel):
        return [list(bucket) for bucket in wrapped.reducer.layout.made().buckets]
    text = wrapped._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")  # absent where it never rebuilds
    return [[int(index) for index in bucket.split()] for bucket in text.split(",") if text]


def main(out: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        saved = {wrapper: run(CASES[name], own=wrapper == "own") for wrapper in ("stock", "own")}
        torch.save(saved, f"{out}/{name}-{dist.get_rank()}.pt")
    leave()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
