"""Trains by one strategy on the test device under a trace without profiler windows: `always_on.py RUN OUT NAME`.

Rank R leaves `told-R.json` in OUT: the losses, and how often the host waited for the device, both with and without a
trace, and the ledger of the traced training.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

import ddptrace
from ddptrace.capture import session
from tests.device.device import HERE, Json
from tests.device.programs.strategies import STEPS, STRATEGIES, Step, Strategy, batches, layers, mesh, stock, training

KERNEL_NS, COLLECTIVE_NS = 500_000, 4_000_000
OPTIMIZERS, UNWATCHED, OFFLOADED = "optimizers", "unwatched", "offloaded"
UNWATCHED_FROM = 3  # the step


def main() -> None:
    run, out, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    strategy = Strategy(OWN[name]) if name in OWN else STRATEGIES[name]
    HERE.begin()
    trained(strategy)  # what torch does once only is done
    HERE.take_ledger()
    told: dict[str, Any] = {"untraced": trained(strategy)}
    told["waits_untraced"] = waits(HERE.take_ledger()[1])
    HERE.set_floors_ns(KERNEL_NS, COLLECTIVE_NS)
    with ddptrace.trace(run):
        told["losses"] = trained(strategy)
        HERE.synchronize()
    told["ledger"], calls = HERE.take_ledger()
    told["waits"] = waits(calls) - 1  # without that of the end
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    HERE.end()


def waits(calls: list[Json]) -> int:
    return sum("Synchronize" in call["name"] for call in calls)


def one_optimizer_each(device: str) -> Step:
    """One for each parameter."""
    model, inputs = stock(layers(device)), batches(device)
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]

    def step(number: int) -> torch.Tensor:
        loss: torch.Tensor = model(inputs[number]).pow(2).mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        return loss.detach()

    return step


def unwatched(device: str) -> Step:
    """ddptrace stops watching collectives on the way."""
    train = STRATEGIES["stock-plain"].make(device)

    def step(number: int) -> torch.Tensor:
        if number == UNWATCHED_FROM and session._current is not None:
            session._current.surfaces["collectives"].failed(ValueError("planted"))
        loss: torch.Tensor = train(number)
        return loss

    return step


def offloaded(device: str) -> Step:
    """FSDP2 with its parameters in the host's memory, where the optimizer updates them."""
    model, whole = layers(device), mesh(device)
    for part in (*model, model):
        fully_shard(part, mesh=whole, offload_policy=CPUOffloadPolicy(pin_memory=False))
    return training(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(device))


OWN: Final = {OFFLOADED: offloaded, OPTIMIZERS: one_optimizer_each, UNWATCHED: unwatched}


def trained(strategy: Strategy) -> list[float]:
    step = strategy.make(HERE.name)
    losses = [step(number) for number in range(STEPS)]
    return [float(loss) for loss in losses if loss is not None]


main()
