"""Whether the analysis named what was planted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.blame.plants import PLANTS

NEAR: Final = 0.1
"""So far, as a share of the truth, a cost may be from it."""


@dataclass(frozen=True, slots=True)
class Planted:
    """One run with a plant. `named`: what the analysis said, dearest first; `cost_ns`: of the first, in a step that has
    the plant."""

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
        """Cost told ÷ truth, where the rank is right and the plant cost anything."""
        if self.cost_ns is None or not self.is_rank_right or self.truth["cost_ns"] <= 0:
            return None
        return self.cost_ns / self.truth["cost_ns"]

    @property
    def is_near(self) -> bool:
        return self.ratio is not None and is_near(self.ratio)

    @property
    def is_truth_sharp(self) -> bool:
        """Whether the truth itself is known so well that the cost can be held against it."""
        cost = self.truth["cost_ns"]
        return cost > 0 and max(self.truth["high_ns"] - cost, cost - self.truth["low_ns"]) <= NEAR * cost


def is_near(ratio: float) -> bool:
    return abs(ratio - 1) <= NEAR


def together(runs: Sequence[Planted]) -> float | None:
    """Of the runs of a plant whose truth is known, what is told ÷ what it is: one in which the machine stood still
    would outweigh all others. A run whose rank is not named tells nothing; None where no truth is known."""
    sharp = [one for one in runs if one.is_truth_sharp]
    truth = sum(one.truth["cost_ns"] for one in sharp)
    told = sum(one.cost_ns or 0.0 for one in sharp if one.is_rank_right)
    return told / truth if truth > 0 else None
