"""Why more all-reduces at once take longer: from the measurements to an answer in words with its numbers.

A rank's step is its calls, each one execution long, `at_once` at a time:  span = calls × exec ÷ at_once. So between
two arrangements, exactly,

    growth of the span  =  (calls ÷ at_once, after : before)  ×  (exec, after : before)
                            more turns are taken                  each runs longer

More turns: calls waited behind others until a worker of their group was free (queue), or the program waited for one
before it launched the next (program). Each runs longer: the processors were busy (cores), or all groups together got
no more bytes through while processors were idle (wire).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final

from ddptrace.units import counted, duration, percent, rate, three_figures

NOT_LONGER: Final = 1.1
BUSY, IDLE = 0.85, 0.6
"""Share of the host's cores that the ranks keep busy: from BUSY on the cores are the limit, below IDLE they are not."""
CEILING: Final = 0.8
"""Share of the highest bytes per second of any number of groups, from which all groups count as at the ceiling."""
ALIKE: Final = 2.0
"""Largest ratio between the growth of the traced span and of the untraced step, for one to explain the other."""
HELD_BACK: Final = 0.25
"""Time between launch and begin, as a share of the execution."""


class Cause(enum.Enum):
    NONE = "no longer"
    CORES = "cores"
    WIRE = "the wire"
    QUEUE = "queue of the group's threads"
    PROGRAM = "the program waits between them"
    OPEN = "not decided"


@dataclass(frozen=True, slots=True)
class Point:
    """One arrangement as measured. Times in ns. `step_ns`: untraced. `sent_nbytes`: by all ranks in a step. `calls` to
    `idle_ns`: see `groups.Calls`, None if no execution was seen. `cores` to `ready`: see
    `groups.load_of_host`."""

    groups: int
    step_ns: float
    sent_nbytes: int
    calls: float | None = None
    span_ns: float | None = None
    exec_ns: float | None = None
    behind_ns: float | None = None
    idle_ns: float | None = None
    cores: int = 1
    cpu_ns: float = 0.0
    cpu_ratio: float = 0.0
    machine_ratio: float | None = None
    ready: float | None = None
    on_gpu: bool = False

    @property
    def bytes_per_s(self) -> float:
        return self.sent_nbytes / self.step_ns * 1e9

    @property
    def at_once(self) -> float | None:
        known = self.calls is not None and self.exec_ns is not None and self.span_ns
        return self.calls * self.exec_ns / self.span_ns if known else None  # type: ignore[operator]

    @property
    def saturated(self) -> bool:
        """Whether the ranks keep the cores busy, or have as many threads ready without a core as there are cores: then
        other programs take a part of the cores."""
        return not self.on_gpu and (self.cpu_ratio >= BUSY or (self.ready or 0) >= self.cores)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why an arrangement takes longer. `growth`: of the untraced step. `longer` times `turns`: the growth of the traced
    span; None if no execution was seen."""

    cause: Cause
    growth: float
    longer: float | None
    turns: float | None
    words: str


def verdict(before: Point, after: Point, most_bytes_per_s: float) -> Verdict:
    """Explain why `after` takes longer than `before`. `most_bytes_per_s`: of all groups together, in any
    arrangement."""
    growth, factors = after.step_ns / before.step_ns, _factors(before, after)
    cause = _cause(growth, factors, after, most_bytes_per_s)
    longer, turns = factors or (None, None)
    because = _because(cause, before, after, most_bytes_per_s)
    return Verdict(cause, growth, longer, turns, f"{_grown(growth, factors)}{because}.")


def _factors(before: Point, after: Point) -> tuple[float, float] | None:
    """Return how many times as long each call runs, and how many times as many turns there are."""
    if not before.at_once or not after.at_once or not before.exec_ns or not after.exec_ns:
        return None
    longer = after.exec_ns / before.exec_ns
    return longer, (after.calls or 0) / (before.calls or 1) / (after.at_once / before.at_once)


def _cause(growth: float, factors: tuple[float, float] | None, after: Point, most_bytes_per_s: float) -> Cause:
    if growth < NOT_LONGER:
        return Cause.NONE
    if factors is not None and _explain(growth, factors) and factors[1] > max(NOT_LONGER, factors[0]):
        return _held_back(after)
    if after.saturated:
        return Cause.CORES
    idle = after.on_gpu or after.cpu_ratio < IDLE
    at_ceiling = CEILING * most_bytes_per_s <= after.bytes_per_s <= most_bytes_per_s / CEILING
    return Cause.WIRE if idle and at_ceiling else Cause.OPEN


def _explain(growth: float, factors: tuple[float, float]) -> bool:
    """Whether the traced run grew like the untraced one."""
    return 1 / ALIKE <= math.prod(factors) / growth <= ALIKE


def _held_back(after: Point) -> Cause:
    """Return why fewer calls executed at once than there were."""
    behind, idle = after.behind_ns or 0, after.idle_ns or 0
    if behind + idle < HELD_BACK * (after.exec_ns or 0):
        return Cause.PROGRAM
    if behind > idle:
        return Cause.QUEUE
    return Cause.CORES if after.saturated else Cause.OPEN


def _grown(growth: float, factors: tuple[float, float] | None) -> str:
    times = f"{three_figures(growth)} times the time"
    if growth < NOT_LONGER:
        return f"{times}, no longer"
    if factors is None:
        return f"{times}, "
    if not _explain(growth, factors):
        return f"{times} (its traced run grew {three_figures(math.prod(factors))} times, too differently to be split), "
    longer, turns = map(three_figures, factors)
    return f"{times} (traced: each all-reduce runs {longer} times as long, in {turns} times as many turns), "


def _because(cause: Cause, before: Point, after: Point, most_bytes_per_s: float) -> str:
    reached = f"all groups together get {rate(after.bytes_per_s)}, {_of_most(after, most_bytes_per_s)}"
    match cause:
        case Cause.NONE:
            return f": {reached}"
        case Cause.CORES:
            return f"because of the cores: {_busy(after)}; {_demand(before, after)}"
        case Cause.WIRE:
            where = (
                "the link or the GPU itself, not distinguished here" if after.on_gpu else f"the wire: {_busy(after)}"
            )
            return f"because of {where}, and {reached}"
        case Cause.QUEUE:
            return f"because of the queue: {_queued(after)}; {_busy(after)}"
        case Cause.PROGRAM:
            return f"because the program waits for one before it launches the next: {_at_once(after)}"
        case _:
            return f"for a reason that these measurements do not show: {_busy(after)}, and {reached}"


def _of_most(after: Point, most_bytes_per_s: float) -> str:
    return f"{percent(after.bytes_per_s / most_bytes_per_s)} of the most that any number of groups reached"


def _busy(point: Point) -> str:
    words = f"the ranks keep {percent(point.cpu_ratio)} of {counted(point.cores, 'core')} busy"
    others = (point.machine_ratio or 0) - point.cpu_ratio
    if others > 0.1:
        words += f" (with the kernel and other programs: {percent(point.machine_ratio)})"
    if point.ready is not None:
        words += f", {three_figures(point.ready)} threads are ready without a core on average"
    return words


def _demand(before: Point, after: Point) -> str:
    """Predict the time from the need of the fewer groups, whatever time the many took."""
    foretold = before.cpu_ns * (after.sent_nbytes / before.sent_nbytes) / after.cores
    need = f"{counted(before.groups, 'group')} alone took {duration(before.cpu_ns)} of processor time a step"
    least = f"{after.groups} at that price need {duration(foretold)} of {counted(after.cores, 'core')}"
    return f"{need}, {least}, and they take {duration(after.step_ns)}"


def _queued(point: Point) -> str:
    behind = f"an all-reduce waits {duration(point.behind_ns)} behind others of its group"
    return f"{behind} and runs {duration(point.exec_ns)}"


def _at_once(point: Point) -> str:
    return f"on average {three_figures(point.at_once or 0)} run at once, of {counted(point.groups, 'group')}"
