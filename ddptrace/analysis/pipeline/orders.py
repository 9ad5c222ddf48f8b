"""The order in which each rank of a pipeline computes, by schedule.

gpipe         rank 0   F0 F1 F2 F3 .  .  B0 B1 B2 B3       all forwards, then all backwards
1f1b          rank 0   F0 F1 .  .  B0 F2 B1 F3 B2 B3       as few forwards ahead as there are stages behind
interleaved   as 1f1b, and each rank has two stages: with two ranks, rank 0 has stages 0 and 2
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.pipeline.schedule import Computation
from ddptrace.analysis.tables.pipeline import Work
from ddptrace.analysis.whatif.tables import Schedule

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
