"""What can be wrong with one rank, the cause that the analysis must name, its real cost, and whether it was named.

The truth is in the run itself, whose steps have the plant in turns; the first two of each block are left out:

plain  plain  plain  plain  plain | late  late  late  late  late | plain ...
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ddptrace.analysis.ranks.causes import COLLECTION, QUOTA, SLOW_LINK
from ddptrace.bench.timing import median_interval

BLOCK_STEPS: Final = 5
"""A plant is off for this many steps, then on for as many, and so on."""

SETTLING_STEPS: Final = 2
"""First steps of a block, which the block before may still affect."""

NEAR: Final = 0.1
"""Largest distance of a near cost from the truth, as a share of it."""


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


@dataclass(frozen=True, slots=True)
class PlantCost:
    """The real cost of a plant. `cost_ns`: median step with the plant less median step without; `low_ns`, `high_ns`:
    its 95 % interval, by the difference of each block from those beside it. `plain_ns`: median step without."""

    cost_ns: float
    low_ns: float
    high_ns: float
    plain_ns: float


def truth_of(ranks: Sequence[Sequence[int]]) -> PlantCost:
    """Return the truth from ns of each step, by rank, without the first block, in which programs warm up."""
    steps = [statistics.fmean(times) for times in zip(*ranks, strict=True)]
    settled = [(block[0], [steps[step] for step in block if is_settled(step)]) for block in blocks(len(steps))][1:]
    on = [time for begin, times in settled if is_on(begin) for time in times]
    plain = [time for begin, times in settled if not is_on(begin) for time in times]
    low, high = median_interval(_beyond_neighbours([(is_on(begin), statistics.median(t)) for begin, t in settled]))
    return PlantCost(statistics.median(on) - statistics.median(plain), low, high, statistics.median(plain))


def _beyond_neighbours(medians: Sequence[tuple[bool, float]]) -> list[float]:
    """Return, for each block with the plant, its median less the mean of the medians of the blocks beside it."""
    beyond = []
    for at, (with_plant, value) in enumerate(medians):
        beside = [medians[near][1] for near in (at - 1, at + 1) if 0 <= near < len(medians)]
        if with_plant and beside:
            beyond.append(value - statistics.fmean(beside))
    return beyond


def share_on(steps: Sequence[int]) -> float:
    """Return the share of these steps that have the plant, 0..1."""
    return statistics.fmean(is_on(step) for step in steps)


def as_json(truth: PlantCost) -> dict[str, Any]:
    return {name: getattr(truth, name) for name in PlantCost.__slots__}


@dataclass(frozen=True, slots=True)
class Planted:
    """One run with a plant. `named`: whom the analysis named, the most costly first; `cost_ns`: of the first, in a step
    that has the plant."""

    plant: str
    ranks: int
    late: int
    named: Sequence[Mapping[str, Any]]
    truth: Mapping[str, float]
    cost_ns: float | None

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> Planted:
        first = next(iter(run["named"]), None)
        cost = None if first is None or not run["on_ratio"] else first["cost_ns"] / run["on_ratio"]
        return cls(run["plant"], run["ranks"], run["late"], run["named"], run["truth"], cost)

    @property
    def is_rank_right(self) -> bool:
        return bool(self.named) and self.named[0]["rank"] == self.late

    @property
    def is_cause_right(self) -> bool:
        return self.is_rank_right and self.named[0]["cause"] == PLANTS[self.plant].cause

    @property
    def ratio(self) -> float | None:
        """Stated cost ÷ truth; None if the rank is wrong or the plant cost nothing."""
        if self.cost_ns is None or not self.is_rank_right or self.truth["cost_ns"] <= 0:
            return None
        return self.cost_ns / self.truth["cost_ns"]

    @property
    def is_near(self) -> bool:
        return self.ratio is not None and is_near(self.ratio)

    @property
    def is_truth_sharp(self) -> bool:
        """Whether the truth is known well enough to compare the cost with it."""
        cost = self.truth["cost_ns"]
        return cost > 0 and max(self.truth["high_ns"] - cost, cost - self.truth["low_ns"]) <= NEAR * cost


def is_near(ratio: float) -> bool:
    return abs(ratio - 1) <= NEAR


def together(runs: Sequence[Planted]) -> float | None:
    """Return the sum of stated costs ÷ the sum of truths, over the runs whose truth is known; None if there are none.

    Otherwise one run in which the machine paused would outweigh all others. A wrong rank counts as a cost of 0.
    """
    sharp = [one for one in runs if one.is_truth_sharp]
    truth = sum(one.truth["cost_ns"] for one in sharp)
    told = sum(one.cost_ns or 0.0 for one in sharp if one.is_rank_right)
    return told / truth if truth > 0 else None
