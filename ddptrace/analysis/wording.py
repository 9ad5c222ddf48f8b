"""Numbers as findings write them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NAMED: Final = 5
"""So many steps or ranks are named one by one; of more, the rest are counted."""


def named(what: str, numbers: Iterable[int]) -> str:
    """As in "step 3", "steps 3, 4 and 5", "ranks 0, 1, 2, 3, 4 and 12 more"."""
    names = [str(number) for number in numbers]
    if len(names) == 1:
        return f"{what} {names[0]}"
    shown = names[:NAMED] if len(names) > NAMED + 1 else names[:-1]
    rest = f"{len(names) - NAMED} more" if len(names) > NAMED + 1 else names[-1]
    return f"{what}s {', '.join(shown)} and {rest}"


def ms(ns: float) -> str:
    return f"{ns / 1e6:.1f} ms"


def mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def amount(nbytes: int) -> str:
    """Of any size: `19.2 kB`, `16.8 MB`."""
    return mb(nbytes) if nbytes >= 1e6 else f"{nbytes / 1e3:.1f} kB" if nbytes >= 1e3 else f"{nbytes} B"


def percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


@dataclass(frozen=True, slots=True)
class HowTo:
    """What the reader can do to have more measured the next time."""

    communicate: str
    mark_steps: str
    profile: str


OURS: Final = HowTo(
    "trace the training loop after torch.distributed.init_process_group()",
    "call t.step() at the end of each iteration",
    "trace with profile=...",
)
FOREIGN: Final = HowTo(
    "record whole steps of a distributed run, with ProfilerActivity.CUDA where it uses NCCL",
    "call prof.step() at the end of each iteration while recording",
    "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
)
"""For files of torch.profiler that somebody recorded without ddptrace."""
