"""How much of the communication is waiting for ranks, and how much is transfer. No clocks are compared."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.ops import family_of

WAITING_MIN_RATIO: Final = 0.5
"""Of the communication. From this share on, ranks that come late matter more than what is sent."""
Calls = dict[tuple[int, int], int]
"""By rank and seq."""


@dataclass(frozen=True, slots=True)
class MatchedTime:
    """Of matched collectives whose executions tell when each rank came. Times are sums over them."""

    collectives: int
    steps: int  # that they ran in; 0 where they ran in none
    ran_ns: int  # mean over the ranks
    transfer_ns: int  # the shortest execution over the ranks
    typical: bool  # whether all of these steps are typical ones

    @property
    def waiting_ratio(self) -> float:
        return 1 - self.transfer_ns / self.ran_ns


def matched_time(result: Result) -> MatchedTime | None:
    """The clock-free estimate: the rank that came last waited for nobody, so its execution is the transfer. None where
    no execution tells when its rank came: a begin that follows from the launch tells nothing of waiting. Of the
    collectives of typical steps; where these have none, of those in any step; else of all."""
    executions: Calls = defaultdict(int)
    step_of: dict[tuple[int, int], int] = {}
    for row in result.collectives:
        if row.tells_arrival:
            executions[row.rank, row.seq] += row.comm_ns or 0
            if row.step is not None:
                step_of[row.rank, row.seq] = row.step
    known = [
        match
        for match in result.matches
        if family_of(match.op).ends_together and all(call in executions for call in _calls_of(match))
    ]
    inside = [match for match in known if any(call in step_of for call in _calls_of(match))]
    typical = {row.step for row in measured_steps(result.steps)[0]}
    middle = [match for match in inside if match.step in typical]
    inside = middle or inside
    told = inside or known
    ran_ns = round(sum(executions[call] / len(match.ranks) for match in told for call in _calls_of(match)))
    if not ran_ns:
        return None
    steps = len({step_of[call] for match in inside for call in _calls_of(match) if call in step_of})
    return MatchedTime(len(told), steps, ran_ns, sum(match.transfer_ns for match in told), bool(middle))


def _calls_of(match: MatchRow) -> list[tuple[int, int]]:
    return list(zip(match.ranks, match.seqs, strict=True))
