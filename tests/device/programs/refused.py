"""Tries what `tests/device/refused.py` lists: `refused.py OUT`. Rank R leaves each one's error in `told-R.json`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from tests.device.device import HERE
from tests.device.programs.strategies import layers, stock


def main() -> None:
    HERE.begin()
    told = {name: error_of(what) for name, what in TRIED.items()}
    (Path(sys.argv[1]) / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    HERE.end()


def error_of(what: Callable[[], object]) -> str | None:
    try:
        what()
        HERE.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def bf16_hook() -> None:
    stock(layers(HERE.name)).register_comm_hook(None, bf16_compress_hook)


def lstm() -> None:
    nn.LSTM(4, 4).to(HERE.name)(torch.ones(2, 1, 4).to(HERE.name))


def reduce_scatter() -> None:
    parts = list(torch.ones(2 * dist.get_world_size()).to(HERE.name).chunk(dist.get_world_size()))
    dist.reduce_scatter(torch.empty(2, device=HERE.name), parts)


def timers() -> float:
    """0 where the reducer has none."""
    model = stock(layers(HERE.name))
    for _ in range(3):
        model(torch.ones(4, 64).to(HERE.name)).sum().backward()
    data = model._get_ddp_logging_data()  # type: ignore[operator]
    if not data.get("avg_backward_compute_time", 0):
        raise RuntimeError("no timer")
    return float(data["avg_backward_compute_time"])


TRIED: dict[str, Callable[[], object]] = {
    "bf16_compress_hook": bf16_hook,
    "lstm": lstm,
    "reduce_scatter": reduce_scatter,
    "timers": timers,
}
main()
