"""Overwrites the memory of freed tensors as soon as a GPU may: `freed.py OUT NAME...`.

Rank R leaves `told-R.json`: for each strategy, its losses without and with that, and what a kernel of another stream
read from a freed tensor, without `record_stream` and with it.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.device.device import HERE
from tests.device.programs.strategies import STEPS, STRATEGIES

LONG_NS = 100_000_000


def main() -> None:
    HERE.begin()
    told = {}
    for name in sys.argv[2:]:
        plain = losses_of(name)
        HERE.overwrite_freed(True)
        told[name] = [plain, losses_of(name)]
        HERE.overwrite_freed(False)
    HERE.overwrite_freed(True)
    told["read"] = [read_by_another_stream(recorded=recorded) for recorded in (False, True)]
    (Path(sys.argv[1]) / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    HERE.end()


def losses_of(name: str) -> list[float]:
    step = STRATEGIES[name].make(HERE.name)
    losses = [step(number) for number in range(STEPS)]
    return [float(loss) for loss in losses if loss is not None]


def read_by_another_stream(*, recorded: bool) -> float:
    """0 or NaN: what the other stream adds up after the tensor is freed."""
    side = HERE.module.Stream()
    numbers = torch.zeros(4, device=HERE.name)
    HERE.synchronize()
    with side:
        HERE.spend(LONG_NS)
        total = numbers.sum()
    if recorded:
        numbers.record_stream(side)
    del numbers
    torch.ones(4, device=HERE.name)  # gets the memory
    HERE.synchronize()
    return float(total.nan_to_num(nan=1.0))


main()
