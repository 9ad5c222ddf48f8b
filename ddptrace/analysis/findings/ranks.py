"""Ranks: who is late, what that costs and why, and how much of the communication is waiting for ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ddptrace.analysis.ranks.causes import COLLECTION, CONTENTION, QUOTA, SLOW_DEVICE, SLOW_LINK
from ddptrace.analysis.ranks.counterfactual import Costs
from ddptrace.analysis.ranks.suspects import Average
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import MatchRow, SuspectRow
from ddptrace.analysis.wording import ms, percent
from ddptrace.load.tables import Finding
from ddptrace.ops import family_of
from ddptrace.schema import Evidence

LATE: Final = "late-rank"
CROWDED: Final = "processors-crowded"
CROWDED_RATIO: Final = 0.1
"""From this share of the step on that ranks wait for a processor, their machine is too small for them."""
_ADVICE: Final[Mapping[str, str]] = {
    "data": "look at what its data loader reads, and from where",
    COLLECTION: "call gc.freeze() before the loop, or gc.disable() and then gc.collect() in the same step on all ranks",
    QUOTA: "give it more processor time, or start fewer threads",
    CONTENTION: "look at what else runs on its machine, and at its number of threads",
    SLOW_DEVICE: "look at its clock rate, its temperature and who else uses it",
}
_LOOK: Final = "look there before you change buckets or the network"


def suspect_findings(suspects: Sequence[SuspectRow], hosts: int) -> Iterator[Finding]:
    """One each, in their order. `hosts`: that took part; of several, theirs is named."""
    for one in suspects:
        yield _slow_link(one) if one.cause == SLOW_LINK else _late(one, f" on host {one.host}" if hosts > 1 else "")


def replay_off(off_ratio: float) -> Finding:
    return Finding(
        "replay-off",
        "info",
        "run",
        f"Nobody is named for being late: by the ranks' clocks, {percent(off_ratio)} of the time does not fit who"
        " waited for whom; align the clocks, or record the ranks on one machine.",
    )


def too_short(rank: int, cost: Average, costs: Costs, *, steps: int) -> Finding:
    """`steps`: so many are to be traced to tell."""
    return Finding(
        "run-too-short",
        "info",
        f"rank {rank}",
        f"Rank {rank} seems to make the others wait, {ms(cost.mean)} of a step"
        f" ({percent(cost.mean / costs.typical_ns)}), but {len(costs.steps)} steps are too few to tell that from"
        f" chance: trace {steps} or more.",
    )


def contention_finding(queued_ns: Sequence[float | None], step_ns: float) -> Iterator[Finding]:
    """`queued_ns`: by rank, how long it waited for a processor in a step."""
    known = [ns for ns in queued_ns if ns is not None]
    if known and median(known) >= CROWDED_RATIO * step_ns > 0:
        yield Finding(
            CROWDED,
            "warning",
            "run",
            f"All ranks wait for a processor: {ms(median(known))} of a step ({percent(median(known) / step_ns)}, median"
            " of the ranks); steps take longer than the program needs: start fewer threads or processes, and let"
            " nothing else run there.",
        )


def _late(one: SuspectRow, place: str) -> Finding:
    doing = f"its {one.phase} phase" if one.phase != "other" else "what it does outside of forward, backward and update"
    if one.cause != one.phase:
        what = f"{one.cause}, mostly in {doing},"
    else:
        what = f"its own work, mostly {doing}," if one.all_phases else doing
    return Finding(
        LATE,
        "warning",
        f"rank {one.rank}",
        f"Rank {one.rank}{place} makes the others wait: {what} costs every rank {_cost(one)}; {one.evidence}."
        f" {_sentence(_ADVICE.get(one.cause, _LOOK))}",
    )


def _slow_link(one: SuspectRow) -> Finding:
    return Finding(
        "slow-link",
        "warning",
        f"host {one.host}",
        f"Host {one.host} (rank {one.rank}) has a slow link, which costs every rank {_cost(one)}; {one.evidence}. Look"
        " at its network adapter, cable and switch port, and at who else sends over them.",
    )


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _cost(one: SuspectRow) -> str:
    often = "in nearly every step" if one.persistent else "in some steps more, in others less"
    return (
        f"{ms(one.cost_ns)} of a step ({percent(one.cost_ratio)}; {ms(one.low_ns)} to {ms(one.high_ns)} with 95 %,"
        f" {one.steps} steps), {often}"
    )


# Transfer and waiting, of all matched collectives ---------------------------------------------------------------------


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
        match
        for match in result.matches
        if family_of(match.op).ends_together and all(call in executions for call in _calls_of(match))
    ]
    inside = [match for match in known if any(call in step_of for call in _calls_of(match))]
    told = inside or known
    ran_ns = round(sum(executions[call] / len(match.ranks) for match in told for call in _calls_of(match)))
    if not ran_ns:
        return None
    steps = len({step_of[call] for match in inside for call in _calls_of(match) if call in step_of})
    return MatchedTime(len(told), steps, ran_ns, sum(match.transfer_ns for match in told))


def _calls_of(match: MatchRow) -> list[tuple[int, int]]:
    return list(zip(match.ranks, match.seqs, strict=True))


def peer_findings(result: Result) -> Iterator[Finding]:
    time = matched_time(result)
    if time is not None and time.waiting_ratio >= WAITING_MIN_RATIO:
        yield Finding(
            "waiting-for-ranks",
            "warning",
            "run",
            f"{percent(time.waiting_ratio)} of the communication is waiting for ranks that come late:"
            f" {time.collectives} collectives{_where(time)}, matched across ranks, run for {_each(time, time.ran_ns)}"
            " on a rank (mean; each by itself, also where they overlap), of which"
            f" {_each(time, time.transfer_ns)} are transfer (the shortest execution over the ranks). Evener ranks would"
            " help, and a faster network would not; busbw of single ranks tells of the waiting too.",
        )


def _where(time: MatchedTime) -> str:
    return f" of {time.steps} steps" if time.steps > 1 else ""


def _each(time: MatchedTime, ns: int) -> str:
    """Beside other figures of a step, that of one."""
    return f"{ms(ns / time.steps)} a step" if time.steps else ms(ns)
