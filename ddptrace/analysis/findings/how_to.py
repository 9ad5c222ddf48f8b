"""What a reader can do to have more measured next time, by who recorded the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class HowTo:
    """Ends of sentences."""

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
"""For files of torch.profiler that were recorded without ddptrace."""
