"""`ddptrace.when_slow`: profiler windows that open when steps have become slower, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ddptrace.errors import TraceStateError

LEAST_FACTOR: Final = 1.05
"""Steps of a steady run differ by more than a smaller factor now and then."""

MOST_STEPS: Final = 100
"""Of a window: more would fill memory and disks, and be a typing error."""


@dataclass(frozen=True, slots=True)
class when_slow:
    """Ask `ddptrace.trace(profile=...)` for profiler windows only when steps have become slower than they usually are.

    Each rank compares its steps with the median of up to 200 steps before them, from the 30th step on. Three steps in a
    row that are longer by `factor` make a slowdown; in a run whose steps often differ as much, it takes as many in a
    row as do not come by chance. All ranks then profile the same steps, shortly after: one step of warm-up, and
    `active` steps that are recorded. What is usual is learned anew after each window, so one slowdown opens one window.

    Args:
        factor: How many times as long as usual steps must be, at least 1.05.
        ranks: Ranks that record windows: "all", or their numbers, such as (0, 1).
        at_most: Maximum number of windows, at least 1.
        active: Steps of a window, from 1 to 100.

    Raises:
        TraceStateError: An argument does not fit.
    """

    factor: float = 1.3
    ranks: Literal["all"] | Sequence[int] = "all"
    at_most: int = 3
    active: int = 3

    def __post_init__(self) -> None:
        if not _is_number(self.factor, int, float) or not LEAST_FACTOR <= self.factor < float("inf"):
            raise TraceStateError(f"ddptrace.when_slow has factor={self.factor!r}; give a number of at least 1.05")
        for name in ("at_most", "active"):
            value = getattr(self, name)
            if not _is_number(value, int) or value < 1:
                raise TraceStateError(f"ddptrace.when_slow has {name}={value!r}; give a whole number of at least 1")
        if self.active > MOST_STEPS:
            raise TraceStateError(f"ddptrace.when_slow has active={self.active}; give at most {MOST_STEPS} steps")
        if self.ranks != "all" and not _are_ranks(self.ranks):
            raise TraceStateError(f'ddptrace.when_slow has ranks={self.ranks!r}; give "all", or ranks such as (0, 1)')

    def includes(self, rank: int) -> bool:
        """Decide whether this rank records windows."""
        return self.ranks == "all" or rank in self.ranks


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _are_ranks(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(_is_number(rank, int) and rank >= 0 for rank in value)
    )
