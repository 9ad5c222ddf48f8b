"""Why a rank is late: what held it up beside its own work for at least half of its time beyond the others', else where
it spends that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.replay import positions
from ddptrace.analysis.tables.ranks import LOCAL_PHASES
from ddptrace.load.tables import Throttle
from ddptrace.units import duration

COLLECTION, QUOTA, CONTENTION = "garbage collection", "processor quota", "processor contention"
SLOW_LINK, SLOW_DEVICE = "slow link", "slow device"
PROVED: Final = (COLLECTION, QUOTA)
"""Recorded as what they are: no chance makes them up."""
SPREAD: Final = (COLLECTION, QUOTA, CONTENTION, SLOW_DEVICE)
"""These may strike in any phase."""
HALF: Final = 0.5
FELT_NS: Final = 50_000
"""Less is told as 0.0 ms."""
COMPUTING: Final = ("forward", "backward", "optimizer")
SLOWER_MIN_RATIO: Final = 1.1
"""All phases that compute take so many times as long as on the other ranks, where a device is slow."""


@dataclass(frozen=True, slots=True)
class Cause:
    """`evidence`: one clause."""

    name: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Lateness:
    """A rank that is late. `excess_ns`: of its own time over the others' median, per step, by phase and in all;
    `own_ns`: by phase and rank, mean per step, shape (phases, ranks)."""

    rank: int  # position among the ranks
    phase: str
    phase_excess_ns: float
    excess_ns: float
    own_ns: Ints


def cause_of(late: Lateness, held: Sequence[Held]) -> Cause:
    """The first that holds."""
    for name, said, values in _stalls(held):
        beyond = beyond_others(values, late.rank)
        if beyond is None or not beyond >= HALF * late.excess_ns > 0:
            continue
        if name != CONTENTION or _queues_more_than_it_works(late, held):
            return Cause(name, f"{said} for {duration(beyond)} of a step longer than the others")
    return _slow_device(late, held) or Cause(late.phase, _on_processor(late, held))


def _stalls(held: Sequence[Held]) -> Iterator[tuple[str, str, list[float | None]]]:
    yield COLLECTION, "Python's garbage collector holds it", [one.collecting_ns for one in held]
    yield QUOTA, "its processor quota holds it", [one.throttled_ns for one in held]
    yield CONTENTION, "it waits for a processor", [one.queued_ns for one in held]


def _queues_more_than_it_works(late: Lateness, held: Sequence[Held]) -> bool:
    """Whether a rank queues longer than its work explains: on a crowded machine twice the work queues twice as long."""
    queued, cpu = [one.queued_ns for one in held], [one.cpu_ns for one in held]
    own, own_cpu = queued[late.rank], cpu[late.rank]
    longer, worked = beyond_others(queued, late.rank), beyond_others(cpu, late.rank)
    if longer is None or worked is None or own is None or own_cpu is None or worked <= 0:
        return True
    others_cpu = own_cpu - worked
    as_others = (own - longer) * own_cpu / others_cpu if others_cpu > 0 else 0.0  # at their queue per processor time
    return longer > worked and own - as_others >= HALF * late.excess_ns


def _slow_device(late: Lateness, held: Sequence[Held]) -> Cause | None:
    """All that computes is slower by a like ratio, and it is computing, not waiting."""
    ratios = [_ratio(late.own_ns[LOCAL_PHASES.index(phase)], late.rank) for phase in COMPUTING]
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(COMPUTING) or min(known) < SLOWER_MIN_RATIO or (min(known) - 1) < HALF * (max(known) - 1):
        return None
    worked = beyond_others([one.cpu_ns for one in held], late.rank)
    if worked is not None and worked < HALF * late.excess_ns:
        return None
    told = ", ".join(f"{name} {ratio:.1f}" for name, ratio in zip(COMPUTING, known, strict=True))
    return Cause(SLOW_DEVICE, f"all that computes takes longer than on the others: {told} times as long")


def _ratio(own_ns: Ints, rank: int) -> float | None:
    others = float(np.median(np.delete(own_ns, rank)))
    return float(own_ns[rank]) / others if others > 0 else None


def _on_processor(late: Lateness, held: Sequence[Held]) -> str:
    """What the rank did in its time beyond the others', as far as that was looked at."""
    longer = f"its own time there is {duration(late.phase_excess_ns)} of a step longer than the others'"
    worked = beyond_others([one.cpu_ns for one in held], late.rank)
    if worked is None or late.excess_ns <= 0 or not all(one.is_watched for one in held):
        return longer
    if worked < HALF * late.excess_ns:
        return f"{longer}; {_asleep(late, worked, beyond_others([one.queued_ns for one in held], late.rank) or 0.0)}"
    return f"{longer}, and it computes in most of that: it runs {duration(worked)} longer"


def _asleep(late: Lateness, worked_ns: float, queued_ns: float) -> str:
    """As in "of these 390 ms it uses the processor for 4.00 ms; the rest it sleeps or is blocked"."""
    phase, whole = duration(late.phase_excess_ns), duration(late.excess_ns)
    these = f"these {whole}" if phase == whole else f"the {whole} of all its phases"
    parts = [f"uses the processor for {duration(worked_ns)}"] if worked_ns >= FELT_NS else []
    parts += [f"waits for a processor for {duration(queued_ns)}"] if queued_ns >= FELT_NS else []
    if parts:
        return f"of {these} it {' and '.join(parts)}; the rest it sleeps or is blocked"
    return f"it sleeps or is blocked for {these}, and uses the processor for no longer than the others"


# What held each rank's training thread up, per step -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """Means over steps of one rank, in ns; None where nobody looked."""

    collecting_ns: float  # Python's garbage collector ran
    throttled_ns: float | None  # its group of processes had used its quota up
    queued_ns: float | None  # it could have run, and no processor was free
    cpu_ns: float | None  # it ran
    counted_ns: float | None = None  # what the system counts as queued, which may exceed a step; `queued_ns` does not

    @property
    def is_watched(self) -> bool:
        return self.cpu_ns is not None


def held_in(table: RankTables, steps: Ints) -> Held:
    """In these steps, which the rank has. A throttled time is spread over the run, since it is seen now and then."""
    walls = np.array([(row.begin_at_ns, row.end_at_ns, row.step) for row in table.steps], np.int64).reshape(-1, 3)
    load, count = table.load, max(len(steps), 1)
    collected = _in_steps(
        [(pause.begin_at_ns, pause.end_at_ns - pause.begin_at_ns) for pause in load.collections], walls, steps
    )
    marks = [(mark.begin_at_ns + mark.end_at_ns) // 2 for mark in load.marks]
    queued, cpu = (
        _in_steps(list(zip(marks, values, strict=True)), walls, steps) / count if marks else None
        for values in ([mark.queued_ns for mark in load.marks], [mark.cpu_ns for mark in load.marks])
    )
    counted = list(zip(marks, [mark.queued_ns for mark in load.marks], strict=True))
    uncut = _in_steps(counted, walls, steps, cut=False) / count if marks else None
    judged = walls[positions(walls[:, 2], steps) >= 0]
    step_ns = int((judged[:, 1] - judged[:, 0]).sum()) / count
    return Held(collected / count, _throttled(load.throttles, step_ns), queued, cpu, uncut)


def _in_steps(events: Sequence[tuple[int, int]], walls: Ints, steps: Ints, *, cut: bool = True) -> float:
    """Sum of the values, each with its instant, of those whose instant lies in one of the steps. `cut`: none counts for
    more than its step is long."""
    at, values = np.array(events, np.int64).reshape(-1, 2).T
    if not len(walls) or not len(at):
        return 0.0
    step = np.searchsorted(walls[:, 0], at, side="right") - 1
    inside = (step >= 0) & (at < walls[step, 1])
    if cut:
        values = np.minimum(values, walls[step, 1] - walls[step, 0])
    return float(values[inside & (positions(walls[step, 2], steps) >= 0)].sum())


def _throttled(seen: Sequence[Throttle], step_ns: float) -> float | None:
    """Per step of this length."""
    span = sum(b.at_ns - a.at_ns for a, b in pairwise(seen))
    return (seen[-1].throttled_ns - seen[0].throttled_ns) / span * step_ns if span > 0 else None


def beyond_others(values: Sequence[float | None], rank: int) -> float | None:
    """Of one rank, over the median of the others that know theirs; None where it knows nothing itself."""
    own = values[rank]
    others = [value for at, value in enumerate(values) if at != rank and value is not None]
    return None if own is None else own - (median(others) if others else 0.0)
