"""Gives the order in which each rank of a pipeline computes, and how long all of it takes at least.

gpipe         rank 0   F0 F1 F2 F3 .  .  B0 B1 B2 B3       all forwards, then all backwards
1f1b          rank 0   F0 F1 .  .  B0 F2 B1 F3 B2 B3       as few forwards ahead as there are stages behind
interleaved   as 1f1b, and each rank has two stages: with two ranks, rank 0 has stages 0 and 2

Each computation begins as soon as its rank is free and what it needs of another stage is there:

rank 0   [F0)[F1)          [B0 )[B1 )
rank 1       [F0)[F1)[B0 )[B1 )            F1 needs F1 of the stage before, B0 needs B0 of the stage after
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from statistics import median, median_low
from typing import Final, NamedTuple

from ddptrace.analysis.tables.parallelism import PipelineRow, Work
from ddptrace.analysis.whatif.tables import Schedule

FOR_THE_STAGE_BEFORE: Final = (Work.BACKWARD, Work.INPUTS)
"""What gives the stage before its gradients."""


class Computation(NamedTuple):
    stage: int
    microbatch: int
    work: str


Orders = Sequence[Sequence[Computation]]
"""By rank, what it computes one after another."""
Durations = Mapping[Computation, int]


def computation_of(row: PipelineRow) -> Computation:
    return Computation(row.stage, row.microbatch, row.work)


def input_of(one: Computation, computed: Container[Computation]) -> Computation | None:
    """Return the computation of another stage that this one needs; None if it needs none. `computed`: all that the
    stages compute."""
    if one.work == Work.FORWARD:
        return Computation(one.stage - 1, one.microbatch, Work.FORWARD) if one.stage else None
    if one.work not in FOR_THE_STAGE_BEFORE:
        return None
    after = (Computation(one.stage + 1, one.microbatch, work) for work in FOR_THE_STAGE_BEFORE)
    return next((found for found in after if found in computed), None)


def length(orders: Orders, durations: Durations) -> int | None:
    """Return how long all takes if messages take no time; None if the orders wait for each other for ever."""
    ends: dict[Computation, int] = {}
    free = [0] * len(orders)
    at = [0] * len(orders)
    going = True
    while going:
        going = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                one = order[at[rank]]
                needed = input_of(one, durations)
                if needed is not None and needed not in ends:
                    break
                free[rank] = ends[one] = max(free[rank], 0 if needed is None else ends[needed]) + durations[one]
                at[rank] += 1
                going = True
    return max(free, default=0) if all(map(int.__eq__, at, map(len, orders))) else None


def of_typical_stage(durations: Durations) -> dict[Computation, int]:
    """Return how long each would take if every stage were as fast as a typical one, and every microbatch as a typical
    one of it: the median over the stages, the lower one of two, of their medians over microbatches."""
    by_work: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one, duration in durations.items():
        by_work[one.work][one.stage].append(duration)
    typical = {
        work: round(median_low([median(times) for times in stages.values()])) for work, stages in by_work.items()
    }
    return {one: typical[one.work] for one in durations}


def spent(order: Iterable[Computation], durations: Durations) -> int:
    return sum(durations[one] for one in order)


# The order of each schedule -------------------------------------------------------------------------------------------


STAGES: Final[dict[Schedule, int]] = {"gpipe": 1, "1f1b": 1, "interleaved": 2}
"""Of each rank."""


def order_of(schedule: Schedule, rank: int, ranks: int, microbatches: int) -> list[Computation]:
    """Return what one rank computes. Of an interleaved schedule, `ranks` divides `microbatches`."""
    forwards = [_turn(schedule, rank, ranks, nth, Work.FORWARD) for nth in range(STAGES[schedule] * microbatches)]
    backwards = [_turn(schedule, rank, ranks, nth, Work.BACKWARD) for nth in range(STAGES[schedule] * microbatches)]
    ahead = min(_ahead(schedule, rank, ranks, microbatches), len(forwards))
    return [*forwards[:ahead], *_alternating(forwards[ahead:], backwards)]


def _ahead(schedule: Schedule, rank: int, ranks: int, microbatches: int) -> int:
    """Forwards before the first backward, but for the one that goes with it."""
    if schedule == "gpipe":
        return microbatches
    return ranks - rank - 1 if schedule == "1f1b" else 2 * (ranks - rank - 1) + ranks


def _alternating(forwards: list[Computation], backwards: list[Computation]) -> Iterator[Computation]:
    for at, backward in enumerate(backwards):
        if at < len(forwards):
            yield forwards[at]
        yield backward


def _turn(schedule: Schedule, rank: int, ranks: int, nth: int, work: Work) -> Computation:
    """The nth forward or backward of a rank. Each of its stages takes as many microbatches as there are ranks before
    the next stage has its turn."""
    stages = STAGES[schedule]
    if stages == 1:
        return Computation(rank, nth, work)
    round_, inside = divmod(nth, stages * ranks)
    chunk, at = divmod(inside, ranks)
    stage = chunk if work is Work.FORWARD else stages - 1 - chunk
    return Computation(stage * ranks + rank, round_ * ranks + at, work)
