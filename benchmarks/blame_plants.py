"""What can be wrong with one rank, and the cause that the analysis must name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ddptrace.analysis.ranks.causes import COLLECTION, QUOTA, SLOW_LINK

BLOCK_STEPS: Final = 5
"""A plant is off for this many steps, then on for as many, and so on."""

SETTLING_STEPS: Final = 2
"""First steps of a block, which the block before may still affect."""


@dataclass(frozen=True, slots=True)
class Plant:
    """`cause`: the right one. `what`: what happens to the rank, for a reader. `needs`: what the machine must have."""

    name: str
    cause: str
    what: str
    needs: Literal["", "hosts", "quota"] = ""


PLANTS: Final[Mapping[str, Plant]] = {
    plant.name: plant
    for plant in (
        Plant("data", "data", "its data loader sleeps 30 ms"),
        Plant("forward", "forward", "its forward sleeps 30 ms"),
        Plant("backward", "backward", "its backward sleeps 30 ms between two layers"),
        Plant("optimizer", "optimizer", "its update sleeps 30 ms"),
        Plant("gc", COLLECTION, "it collects garbage, about 30 ms, after each update"),
        Plant("link", SLOW_LINK, "its host sends at 200 Mbit/s and the others at 1 Gbit/s", "hosts"),
        Plant("half-core", QUOTA, "it may use half a core", "quota"),
    )
}


def is_on(step: int) -> bool:
    """Whether the plant acts in this step of a run."""
    return step // BLOCK_STEPS % 2 == 1


def is_settled(step: int) -> bool:
    return step % BLOCK_STEPS >= SETTLING_STEPS


def blocks(steps: int) -> Sequence[range]:
    """Return the whole blocks of a run's steps."""
    return [range(begin, begin + BLOCK_STEPS) for begin in range(0, steps - BLOCK_STEPS + 1, BLOCK_STEPS)]
