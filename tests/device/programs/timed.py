"""Times ways to train a GPT against each other, a few steps in turn: `timed.py OUT WHAT`.

`overhead`: stock DDP untraced, untraced again (what differs there is noise), and under a trace; `overhead-fsdp2`: the
same of FSDP2. `reducers`: stock DDP and BucketedDataParallel, with the losses and the parameters of both. Rank R leaves
`told-R.json`: the seconds of a step in each round, by way.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from ddptrace.reducer import BucketedDataParallel
from tests.device.device import HERE
from tests.device.programs.gpt import LARGE, SMALL, TINY, Size, model_of, stepping

ROUNDS, STEPS = (16, 5) if HERE.is_gpu else (3, 2)
LARGE_CAP_MB, SMALL_CAP_MB = 25.0, 0.02
REDUCERS: Final[dict[str, Callable[..., nn.Module]]] = {"stock": DistributedDataParallel, "own": BucketedDataParallel}

Step = Callable[[], Tensor]
Seconds = dict[str, list[float]]


def main() -> None:
    out, what = Path(sys.argv[1]), sys.argv[2]
    HERE.begin()
    size = TINY if not HERE.is_gpu else LARGE if dist.get_world_size() == 1 else SMALL
    told = reducers(out, size) if what == "reducers" else overhead(out, size, WRAPPERS[what])
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    HERE.end()


def overhead(out: Path, size: Size, wrap: Callable[[Size], nn.Module]) -> dict[str, Any]:
    model = wrap(size)
    step = stepping(model, size, HERE.name)
    seconds: Seconds = {"off": [], "null control": [], "traced": []}
    for number in range(ROUNDS):
        for way in in_turn(list(seconds), number):
            traced = ddptrace.trace(out / f"run-{number}") if way == "traced" else nullcontext()
            seconds[way].append(timed(step, traced))
    return {"seconds": seconds, "parameters": sum(one.numel() for one in model.parameters())}


def reducers(out: Path, size: Size) -> dict[str, Any]:
    models = {"stock": wrapped("stock", size), "own": wrapped("own", size), "stock again": wrapped("stock", size)}
    steps = {name: stepping(model, size, HERE.name) for name, model in models.items()}
    torch.use_deterministic_algorithms(True, warn_only=True)
    losses = {name: [float(step()) for _ in range(4)] for name, step in steps.items()}
    digests = {name: digest(model) for name, model in models.items()}
    torch.use_deterministic_algorithms(False)
    seconds: Seconds = {name: [] for name in REDUCERS}
    for number in range(ROUNDS):
        for name in in_turn(list(REDUCERS), number):
            seconds[name].append(timed(steps[name], nullcontext()))
    return {"losses": losses, "digests": digests, "seconds": seconds}


def wrapped(name: str, size: Size) -> nn.Module:
    cap = LARGE_CAP_MB if size is LARGE else SMALL_CAP_MB if size is TINY else 1.0
    return REDUCERS[name](model_of(size, HERE.name), bucket_cap_mb=cap)


def sharded(size: Size) -> nn.Module:
    model = model_of(size, HERE.name)
    mesh = init_device_mesh(HERE.name, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WRAPPERS: Final[dict[str, Callable[[Size], nn.Module]]] = {
    "overhead": partial(wrapped, "stock"),
    "overhead-fsdp2": sharded,
}


def in_turn(ways: list[str], number: int) -> list[str]:
    """Begin with another way in each round."""
    first = number % len(ways)
    return ways[first:] + ways[:first]


def timed(step: Step, around: AbstractContextManager[Any]) -> float:
    with around:
        step()
        HERE.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        HERE.synchronize()
        return (time.perf_counter() - begin) / STEPS


def digest(model: nn.Module) -> str:
    """Return a hash of the parameters' bits."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()


main()
