"""Numbers as findings write them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ddptrace.schema import THROUGH

NAMED: Final = 5
"""So many steps or ranks are named one by one; of more, the rest are counted."""


def named(what: str, numbers: Iterable[int]) -> str:
    """As in "step 3", "steps 3, 4 and 5", "ranks 0, 2, 4, 6, 8 and 12 more", "ranks 8 to 15 and 24"."""
    runs = _runs(numbers)
    count = sum(map(len, runs))
    names = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    if len(names) == 1:
        return f"{what}{'s' * (count > 1)} {names[0]}"
    shown = names[:NAMED] if len(names) > NAMED + 1 else names[:-1]
    rest = f"{sum(map(len, runs[NAMED:]))} more" if len(names) > NAMED + 1 else names[-1]
    return f"{what}s {', '.join(shown)} and {rest}"


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """Those that follow each other together, where they are so many that their ends say it better."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [part for run in runs for part in ([run] if len(run) >= NAMED else [[number] for number in run])]


def line_words(site: str | None, through: str | None) -> str | None:
    """As in "train.py:42 in step, through deepspeed/runtime/engine.py:13 in reduce"; None where no line is known."""
    return f"{site}{THROUGH}{through}" if through else site


def ms(ns: float) -> str:
    return f"{ns / 1e6:.1f} ms"


def brief(ns: float) -> str:
    """What may be far less than a millisecond."""
    return ms(ns) if ns >= 1e6 else f"{ns / 1e3:.0f} µs"


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
