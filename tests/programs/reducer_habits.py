"""What training loops do beside the plain step, with stock DDP and with our reducer. `reducer_habits.py OUT HABIT...`

Saves, for each habit and wrapper, every gradient before every update and the final parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddptrace.reducer import BucketedDataParallel
from tests.programs.leaving import leave

STEPS, CAP_MB = 6, 0.004
Wrapper = Any
Habit = Callable[["Training"], None]


class Blocks(nn.Module):
    """Residual blocks; `recompute`: None, or how torch.utils.checkpoint recomputes them."""

    def __init__(self, recompute: bool | None = None, *, normed: bool = False) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(16, 32), nn.Linear(32, 4)
        self.norm: nn.Module = nn.BatchNorm1d(32) if normed else nn.Identity()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)) for _ in range(3))
        self.recompute = recompute

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.stem(inputs))
        for block in self.blocks:
            more = block(hidden) if self.recompute is None else _recomputed(block, hidden, self.recompute)
            hidden = hidden + more
        out: Tensor = self.head(hidden)
        return out


def _recomputed(block: nn.Module, hidden: Tensor, reentrant: bool) -> Tensor:
    out: Tensor = checkpoint(block, hidden, use_reentrant=reentrant)
    return out


class Training:
    """One model, or two, and what a step needs."""

    def __init__(self, kind: type[nn.Module]) -> None:
        self.kind = kind
        self.recompute: bool | None = None
        self.normed = False
        self.wrapped: dict[str, Any] = {}
        self.group = dist.new_group()  # as in a program that trains nothing else
        self.steps = 0
        self.models: list[Wrapper] = []
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def model(self, at: int = 0) -> Wrapper:
        while len(self.models) <= at:
            torch.manual_seed(len(self.models))
            model = Blocks(self.recompute, normed=self.normed)
            settings = {"process_group": self.group, "bucket_cap_mb": CAP_MB} | self.wrapped
            self.models.append(self.kind(model, **settings))
        return self.models[at]

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for model in self.models for parameter in model.parameters()]


def loss_of(model: Wrapper) -> Tensor:
    loss: Tensor = model(torch.randn(8, 16)).pow(2).mean()
    return loss


def recomputing_reentrantly(training: Training) -> None:
    training.recompute = True
    loss_of(training.model()).backward()


def recomputing(training: Training) -> None:
    training.recompute, training.wrapped = False, {"find_unused_parameters": True}
    loss_of(training.model()).backward()


def autocast(training: Training) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(training.model())
    loss.backward()


def backward_in_autocast(training: Training) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss_of(training.model()).backward()


def scaled_and_clipped(training: Training) -> None:
    loss = training.scaler.scale(loss_of(training.model()))
    loss.backward()
    for parameter in training.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(1 / training.scaler.get_scale())
    nn.utils.clip_grad_norm_(training.parameters(), 0.1, foreach=True)


def evaluating_between(training: Training) -> None:
    model = training.model()
    model.eval()
    with torch.inference_mode():
        model(torch.randn(8, 16))
    assert not model.module.training
    loss_of(model.train()).backward()


def gradients_aside(training: Training) -> None:
    torch.autograd.grad(loss_of(training.model()), list(training.model().parameters()))
    loss_of(training.model()).backward()


def two_forwards_in_one_loss(training: Training) -> None:
    (loss_of(training.model()) + loss_of(training.model())).backward()


def two_forwards_through_batch_norm(training: Training) -> None:
    """What the first one saved of the running statistics is still to be used when the second gets rank 0's."""
    training.normed = True
    (loss_of(training.model()) + loss_of(training.model())).backward()


def a_loss_thrown_away_now_and_then(training: Training) -> None:
    training.steps += 1
    if training.steps % 3 == 0:
        loss_of(training.model())
    loss_of(training.model()).backward()


def two_models_in_one_loss(training: Training) -> None:
    (loss_of(training.model(0)) + loss_of(training.model(1))).backward()


def one_model_inside_the_other(training: Training) -> None:
    """The output of one is the input of the other, and both are trained."""
    first = training.model(0)(torch.randn(8, 16)).repeat(1, 4)
    training.model(1)(first).pow(2).mean().backward()


HABITS: dict[str, Habit] = {
    made.__name__: made
    for made in (recomputing_reentrantly, recomputing, autocast, backward_in_autocast, scaled_and_clipped,
                 evaluating_between, gradients_aside, two_forwards_in_one_loss,
                 two_forwards_through_batch_norm,
                 a_loss_thrown_away_now_and_then, two_models_in_one_loss, one_model_inside_the_other)
}  # fmt: skip


def train(habit: Habit, kind: type[nn.Module]) -> Iterator[Tensor]:
    training = Training(kind)
    torch.manual_seed(100 + dist.get_rank())
    optimizer: torch.optim.Optimizer | None = None
    for _ in range(STEPS):
        habit(training)
        optimizer = optimizer or torch.optim.AdamW(training.parameters(), lr=1e-2, foreach=True)
        for parameter in training.parameters():
            assert parameter.grad is not None
            yield parameter.grad.clone()
        optimizer.step()
        optimizer.zero_grad()
    yield from (parameter.detach().clone() for parameter in training.parameters())


def main(out: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        kinds = {"stock": DistributedDataParallel, "own": BucketedDataParallel}
        saved = {which: list(train(HABITS[name], kind)) for which, kind in kinds.items()}
        torch.save(saved, f"{out}/{name}-{dist.get_rank()}.pt")
    leave()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
