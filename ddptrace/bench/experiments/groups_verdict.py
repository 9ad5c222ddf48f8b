"""Why more all-reduces at once take longer: from what was measured to an answer in words, each with its numbers.

A rank's step is its calls, one execution long each, so many at once:  span = calls × exec ÷ at_once. So between two
arrangements, exactly,

    growth of the span  =  (calls ÷ at_once, after : before)  ×  (exec, after : before)
                            more turns are taken                  each runs longer

More turns: calls stood behind others until a worker of their group was free (queue), or the program itself waited
for one before it launched the next (program). Each runs longer: the processors were busy (cores), or all groups
together got no more bytes through while processors were idle (wire).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final

from ddptrace.render.words import counted, duration, percent, rate, three_figures

NOT_LONGER: Final = 1.1
BUSY, IDLE = 0.85, 0.6
"""Share of its host's cores that the ranks keep busy, from which they are the limit, and below which they are not."""
CEILING: Final = 0.8
"""Bytes per second of all groups, to the most that any number of groups reached, from which they count as that most."""
ALIKE: Final = 2.0
"""How far the growth of the traced span may be from the untraced step's for the one to explain the other."""
HELD_BACK: Final = 0.25
"""Time between launch and begin, to that of the execution."""


class Cause(enum.Enum):
    NONE = "no longer"
    CORES = "cores"
    WIRE = "the wire"
    QUEUE = "queue of the group's threads"
    PROGRAM = "the program waits between them"
    OPEN = "not decided"


@dataclass(frozen=True, slots=True)
class Point:
    """One arrangement as measured. Times in ns. `step_ns`: untraced. `sent_nbytes`: by all ranks in a step. The four
    times of calls are `groups_facts.Calls`, None where no execution was seen; the four of processors `groups_load`."""

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
        """The ranks keep the cores busy, or as many of their threads stand ready without a core as there are cores:
        then other programs have a part of them."""
        return not self.on_gpu and (self.cpu_ratio >= BUSY or (self.ready or 0) >= self.cores)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`growth` of the untraced step; `longer` and `turns` multiply to the growth of the traced span, None where no
    execution was seen."""

    cause: Cause
    growth: float
    longer: float | None
    turns: float | None
    words: str


def verdict(before: Point, after: Point, most_bytes_per_s: float) -> Verdict:
    """Why `after` takes longer than `before`. `most_bytes_per_s`: of all groups together, in any arrangement."""
    growth, factors = after.step_ns / before.step_ns, _factors(before, after)
    cause = _cause(growth, factors, after, most_bytes_per_s)
    longer, turns = factors or (None, None)
    because = _because(cause, before, after, most_bytes_per_s)
    return Verdict(cause, growth, longer, turns, f"{_grown(growth, factors)}{because}.")


def _factors(before: Point, after: Point) -> tuple[float, float] | None:
    """How many times as long each runs, and how many times as many turns are taken."""
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
    """Whether the traced run grew as the untraced one did."""
    return 1 / ALIKE <= math.prod(factors) / growth <= ALIKE


def _held_back(after: Point) -> Cause:
    """Why fewer executed at once than there were."""
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
        return f"{times} (its traced run grew {three_figures(math.prod(factors))} times, too unlike to be split), "
    longer, turns = map(three_figures, factors)
    return f"{times} (traced: each all-reduce runs {longer} times as long, in {turns} times as many turns), "


def _because(cause: Cause, before: Point, after: Point, most_bytes_per_s: float) -> str:
    reached = f"all groups together get {rate(after.bytes_per_s)}, {_of_most(after, most_bytes_per_s)}"
    match cause:
        case Cause.NONE:
            return f": {reached}"
        case Cause.CORES:
            return f"which is the cores: {_busy(after)}; {_demand(before, after)}"
        case Cause.WIRE:
            where = "the link or the GPU itself, not told apart here" if after.on_gpu else f"the wire: {_busy(after)}"
            return f"which is {where}, and {reached}"
        case Cause.QUEUE:
            return f"which is the queue: {_queued(after)}; {_busy(after)}"
        case Cause.PROGRAM:
            return f"which is the program, as it waits for one before it launches the next: {_at_once(after)}"
        case _:
            return f"not decided by what was measured: {_busy(after)}, and {reached}"


def _of_most(after: Point, most_bytes_per_s: float) -> str:
    return f"{percent(after.bytes_per_s / most_bytes_per_s)} of the most that any number of groups reached"


def _busy(point: Point) -> str:
    told = f"the ranks keep {percent(point.cpu_ratio)} of {counted(point.cores, 'core')} busy"
    others = (point.machine_ratio or 0) - point.cpu_ratio
    if others > 0.1:
        told += f" (with the kernel and other programs: {percent(point.machine_ratio)})"
    if point.ready is not None:
        told += f", {three_figures(point.ready)} threads stand ready without a core on the mean"
    return told


def _demand(before: Point, after: Point) -> str:
    """What the fewer groups' own need foretells: independent of how long the many took."""
    foretold = before.cpu_ns * (after.sent_nbytes / before.sent_nbytes) / after.cores
    need = f"{counted(before.groups, 'group')} alone took {duration(before.cpu_ns)} of processor time a step"
    least = f"{after.groups} at that price need {duration(foretold)} of {counted(after.cores, 'core')}"
    return f"{need}, {least}, and they take {duration(after.step_ns)}"


def _queued(point: Point) -> str:
    behind = f"an all-reduce stands {duration(point.behind_ns)} behind others of its group"
    return f"{behind} and runs {duration(point.exec_ns)}"


def _at_once(point: Point) -> str:
    return f"on the mean {three_figures(point.at_once or 0)} run at once, of {counted(point.groups, 'group')}"
