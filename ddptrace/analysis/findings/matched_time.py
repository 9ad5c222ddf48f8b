"""What collectives that were matched across ranks say of them: how much was transfer, how much waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.matching.proof import ENDING_TOGETHER
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.analysis.wording import ms, percent
from ddptrace.load.tables import Finding
from ddptrace.schema import Evidence

WAITING_MIN_RATIO: Final = 0.5
"""From such a share of the communication on, ranks that come late matter more than what is sent."""

Calls = dict[tuple[int, int], int]
"""By rank and seq."""


@dataclass(frozen=True, slots=True)
class MatchedTime:
    """Of matched collectives whose executions were measured. Times are sums over them."""

    collectives: int
    steps: int  # that they ran in; 0 where they ran in none
    ran_ns: int  # mean over the ranks
    transfer_ns: int  # the shortest execution over the ranks

    @property
    def waiting_ratio(self) -> float:
        return 1 - self.transfer_ns / self.ran_ns


def matched_time(result: Result) -> MatchedTime | None:
    """The clock-free estimate: the rank that came last waited for nobody, so its execution is the transfer. None where
    no execution was measured: a begin that was inferred tells nothing of waiting. Where some ran in steps, only those.
    """
    executions: Calls = defaultdict(int)
    step_of: dict[tuple[int, int], int] = {}
    for row in result.collectives:
        if row.evidence in (Evidence.DEVICE, Evidence.BACKEND):
            executions[row.rank, row.seq] += row.comm_ns or 0
            if row.step is not None:
                step_of[row.rank, row.seq] = row.step
    known = [
        match for match in result.matches if _ends_together(match) and all(one in executions for one in _of(match))
    ]
    inside = [match for match in known if any(one in step_of for one in _of(match))]
    told = inside or known
    ran_ns = round(sum(executions[one] / len(match.ranks) for match in told for one in _of(match)))
    if not ran_ns:
        return None
    steps = len({step_of[one] for match in inside for one in _of(match) if one in step_of})
    return MatchedTime(len(told), steps, ran_ns, sum(match.transfer_ns for match in told))


def _ends_together(match: MatchRow) -> bool:
    return match.op.startswith(ENDING_TOGETHER)


def _of(match: MatchRow) -> list[tuple[int, int]]:
    return list(zip(match.ranks, match.seqs, strict=True))


def peer_findings(result: Result) -> Iterator[Finding]:
    time = matched_time(result)
    if time is not None and time.waiting_ratio >= WAITING_MIN_RATIO:
        yield Finding("waiting-for-ranks", "warning", "run", (
            f"{percent(time.waiting_ratio)} of the communication is waiting for ranks that come late:"
            f" {time.collectives} collectives{_where(time)}, matched across ranks, run for {_each(time, time.ran_ns)}"
            " on a rank (mean; each by itself, also where they overlap), of which"
            f" {_each(time, time.transfer_ns)} are transfer (the shortest execution over the ranks). Evener ranks would"
            " help, and a faster network would not; busbw of single ranks tells of the waiting too."
        ))  # fmt: skip


def _where(time: MatchedTime) -> str:
    return f" of {time.steps} steps" if time.steps > 1 else ""


def _each(time: MatchedTime, ns: int) -> str:
    """Beside other figures of a step, that of one."""
    return f"{ms(ns / time.steps)} a step" if time.steps else ms(ns)
