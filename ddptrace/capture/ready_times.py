"""When each gradient of a reducer was there, in one backward.

A hook on a parameter notes it, up to hundreds of times a step: it stores one number, in a place that is there already.

by parameter    0: 1712    1: 1709    2: none    3: 1714
in order        1, 0, 3
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ddptrace.capture.collectives import Collectives
from ddptrace.capture.sampling import Sampling

_now = time.perf_counter_ns


class ReadyTimes:
    """`times`: by parameter, 0 where its gradient was not there yet. One that comes twice counts the second time."""

    __slots__ = ("_nothing", "times")

    def __init__(self, parameters: int) -> None:
        self._nothing = [0] * parameters
        self.times = [0] * parameters

    def clear(self) -> None:
        self.times[:] = self._nothing

    def in_order(self) -> tuple[list[int], list[int]]:
        """Parameters in the order in which their gradients came, and when."""
        times = self.times
        order = sorted([index for index, at in enumerate(times) if at], key=times.__getitem__)
        return order, [times[index] for index in order]


def ready_hook(
    ready: ReadyTimes, parameter: int, number: int, collectives: Collectives, sampling: Sampling
) -> Callable[[Any], None]:
    """A hook for after the gradient of a parameter was accumulated: what its reducer, `number`, sends comes next. It
    holds the list of times, not the module: no cycle through C++."""
    times = ready.times

    def gradient_ready(_: Any, parameter: int = parameter) -> None:  # a default is read faster than a closure
        if sampling.live:
            times[parameter] = _now()
            collectives.reducer = number

    return gradient_ready
