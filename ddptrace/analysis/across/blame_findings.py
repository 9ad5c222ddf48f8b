"""Who is late, what that costs and why, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from ddptrace.analysis.across.blocks import Average
from ddptrace.analysis.across.causes import COLLECTION, CONTENTION, QUOTA, SLOW_DEVICE, SLOW_LINK
from ddptrace.analysis.across.counterfactual import Costs
from ddptrace.analysis.across.tables import SuspectRow
from ddptrace.analysis.wording import ms, percent
from ddptrace.load.tables import Finding

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
    return Finding("replay-off", "info", "run", (
        f"Nobody is named for being late: by the ranks' clocks, {percent(off_ratio)} of the time does not fit who"
        " waited for whom; align the clocks, or record the ranks on one machine."
    ))  # fmt: skip


def too_short(rank: int, cost: Average, costs: Costs, *, steps: int) -> Finding:
    """`steps`: so many are to be traced to tell."""
    return Finding("run-too-short", "info", f"rank {rank}", (
        f"Rank {rank} seems to make the others wait, {ms(cost.mean)} of a step"
        f" ({percent(cost.mean / costs.typical_ns)}), but {len(costs.steps)} steps are too few to tell that from"
        f" chance: trace {steps} or more."
    ))  # fmt: skip


def contention_finding(queued_ns: Sequence[float | None], step_ns: float) -> Iterator[Finding]:
    """`queued_ns`: by rank, how long it waited for a processor in a step."""
    known = [ns for ns in queued_ns if ns is not None]
    if known and median(known) >= CROWDED_RATIO * step_ns > 0:
        yield Finding(CROWDED, "warning", "run", (
            f"All ranks wait for a processor: {ms(median(known))} of a step ({percent(median(known) / step_ns)}, median"
            " of the ranks); steps take longer than the program needs: start fewer threads or processes, and let"
            " nothing else run there."
        ))  # fmt: skip


def _late(one: SuspectRow, place: str) -> Finding:
    doing = f"its {one.phase} phase" if one.phase != "other" else "what it does outside of forward, backward and update"
    if one.cause != one.phase:
        what = f"{one.cause}, mostly in {doing},"
    else:
        what = f"its own work, mostly {doing}," if one.all_phases else doing
    return Finding(LATE, "warning", f"rank {one.rank}", (
        f"Rank {one.rank}{place} makes the others wait: {what} costs every rank {_cost(one)}; {one.evidence}."
        f" {_sentence(_ADVICE.get(one.cause, _LOOK))}"
    ))  # fmt: skip


def _slow_link(one: SuspectRow) -> Finding:
    return Finding("slow-link", "warning", f"host {one.host}", (
        f"Host {one.host} (rank {one.rank}) has a slow link, which costs every rank {_cost(one)}; {one.evidence}. Look"
        " at its network adapter, cable and switch port, and at who else sends over them."
    ))  # fmt: skip


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _cost(one: SuspectRow) -> str:
    often = "in nearly every step" if one.persistent else "in some steps more, in others less"
    return (
        f"{ms(one.cost_ns)} of a step ({percent(one.cost_ratio)}; {ms(one.low_ns)} to {ms(one.high_ns)} with 95 %,"
        f" {one.steps} steps), {often}"
    )
