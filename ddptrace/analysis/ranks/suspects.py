"""Who is named: a rank that costs the run so much, so surely, that no chance does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.ranks.causes import PROVED, SPREAD, Cause, Held, Lateness, cause_of
from ddptrace.analysis.ranks.replay import ALL, QUESTIONS, Costs
from ddptrace.analysis.statistics import student_quantile
from ddptrace.analysis.tables.ranks import LOCAL_PHASES, SuspectRow

COST_MIN_RATIO: Final = 0.04
"""Of the median step: eleven healthy runs on crowded machines reached 0.028 among those as sure as `SURE`."""
SURE: Final = 4.0
"""Standard errors, of a mean over many blocks; over few blocks chance makes up more, and more are asked for."""
PROVED_SURE: Final = 2.0
"""The same where the cause itself was recorded."""
SHORT_STEPS: Final = 40
"""In a run of fewer steps neighbouring ones vary alike, and blocks are too short to tell."""
SHORT_MIN_RATIO: Final = 0.1
"""In place of `COST_MIN_RATIO` in such a run."""
MIN_STEPS: Final = 8
FEW_MIN_RATIO: Final = 0.05
"""In place of `SHORT_MIN_RATIO` where the device tells the times: no other program takes its processors away."""
STANDS_OUT: Final = 2.0
"""So many times what any other rank costs."""
LEAST_OF_FIRST: Final = 1 / 3
"""A rank that costs less than this share of the dearest one is not named beside it."""
PERSISTENT_MIN_RATIO: Final = 0.8
USUAL_SHARE: Final = 0.9
"""Of the steps: one stall of seconds would else be the cause of all."""
WHOLE: Final = QUESTIONS.index(ALL)


@dataclass(frozen=True, slots=True)
class RankCost:
    """What one rank costs, and why. `average`: of the cost that is told."""

    rank: int  # position among the ranks
    phase: str
    cause: Cause
    average: Average
    persistent: bool
    all_phases: bool


def costs_of_suspects(costs: Costs, own_ns: Ints, held_in: Callable[[Ints], Sequence[Held]]) -> list[RankCost]:
    """Of the ranks that are named, dearest first. `own_ns`: by phase and rank, mean per step; `held_in`: of each rank,
    in steps."""
    found = [
        verdict for at in range(len(costs.ranks)) if (verdict := _cost_of_rank(costs, at, own_ns, held_in)) is not None
    ]
    found.sort(key=lambda verdict: (-verdict.average.mean, verdict.rank))
    return [cost for cost in found if cost.average.mean >= LEAST_OF_FIRST * found[0].average.mean]


def is_dear(cost: Average, costs: Costs) -> bool:
    """Enough, and surely enough, to be named for."""
    return _is_much(cost, costs) and _is_sure(cost)


def _is_sure(cost: Average) -> bool:
    return cost.z >= max(SURE, cost.seldom)


def _is_much(cost: Average, costs: Costs) -> bool:
    least = SHORT_MIN_RATIO if len(costs.steps) < SHORT_STEPS else COST_MIN_RATIO
    return len(costs.steps) >= MIN_STEPS and cost.mean >= least * costs.typical_ns > 0


def unsure(costs: Costs) -> tuple[int, Average] | None:
    """Who would be named in a longer run if it went on so, and what that costs. In a short one chance does as much."""
    if len(costs.steps) >= SHORT_STEPS:
        return None
    averages = [average(row[WHOLE]) for row in costs.cost_ns]
    at = max(range(len(averages)), key=lambda at: averages[at].mean)
    one = averages[at]
    is_seen = one.mean >= COST_MIN_RATIO * costs.typical_ns > 0 and _is_sure(one)
    return (costs.ranks[at], one) if is_seen else None


def dearest_of_few(costs: Costs, *, on_device: bool) -> tuple[int, float] | None:
    """Of too few steps to name anybody: the position of the rank that costs most, and its cost in ns, the mean of the
    steps; None where it does not stand out."""
    if not 0 < len(costs.steps) < MIN_STEPS:
        return None
    means = costs.cost_ns[:, WHOLE].mean(axis=1)
    at = int(means.argmax())
    least = FEW_MIN_RATIO if on_device else SHORT_MIN_RATIO
    others = float(np.delete(means, at).max(initial=0.0))
    is_dear = means[at] >= least * costs.typical_ns > 0 and means[at] >= STANDS_OUT * others
    return (at, float(means[at])) if is_dear else None


def suspect_rows(named: Sequence[RankCost], costs: Costs, ranks: Sequence[tuple[int, str]]) -> Iterator[SuspectRow]:
    """`ranks`: rank and host by position."""
    for cost in named:
        yield suspect_row(
            ranks[cost.rank],
            cost.phase,
            cost.cause,
            cost.average,
            costs,
            persistent=cost.persistent,
            all_phases=cost.all_phases,
        )


def suspect_row(
    rank: tuple[int, str],
    phase: str,
    cause: Cause,
    cost: Average,
    costs: Costs,
    *,
    persistent: bool,
    all_phases: bool = False,
) -> SuspectRow:
    return SuspectRow(
        *rank,
        phase,
        cause.name,
        round(cost.mean),
        cost.mean / costs.typical_ns,
        round(cost.low),
        round(cost.high),
        persistent,
        len(costs.steps),
        cause.evidence,
        all_phases,
    )


def is_persistent(values: Ints) -> bool:
    """At least half of the mean in most steps; what strikes now and then is nothing in the others."""
    return bool((values > values.mean() / 2).mean() >= PERSISTENT_MIN_RATIO)


def _cost_of_rank(costs: Costs, at: int, own_ns: Ints, held_in: Callable[[Ints], Sequence[Held]]) -> RankCost | None:
    averages = [average(row) for row in costs.cost_ns[at]]
    dear = [is_dear(one, costs) for one in averages]
    if not any(dear) and not any(_is_much(one, costs) and one.z >= PROVED_SURE for one in averages):
        return None
    means = np.array([one.mean for one in averages])
    least = np.array([one.low for one in averages[:WHOLE]])  # of phases of which none is sure, a mean may be one stall
    candidates = np.where(dear[:WHOLE], means[:WHOLE], -np.inf) if any(dear[:WHOLE]) else least
    phase, usual = int(candidates.argmax()), _usual(costs.excess_ns[at, WHOLE])
    excess = costs.excess_ns[at][:, usual].mean(axis=1)
    late = Lateness(costs.ranks[at], LOCAL_PHASES[phase], float(excess[phase]), float(excess[WHOLE]), own_ns)
    cause = cause_of(late, held_in(costs.steps[usual]))
    if not any(dear) and cause.name not in PROVED:
        return None
    mostly = costs.cost_ns[at][:, usual].mean(axis=1)
    is_spread = cause.name in SPREAD or not dear[phase] or mostly[phase] < mostly[WHOLE] / 2
    told = WHOLE if is_spread and means[WHOLE] > 0 else phase
    return RankCost(
        late.rank, late.phase, cause, averages[told], is_persistent(costs.excess_ns[at, told]), told == WHOLE
    )


def _usual(excess_ns: Ints) -> NDArray[np.bool_]:
    """The steps that tell why a rank is late: without its worst ones, in which something else may have come on top;
    all, where it is late in those alone."""
    usual: NDArray[np.bool_] = excess_ns <= np.quantile(excess_ns, USUAL_SHARE)
    return usual if excess_ns[usual].mean() >= excess_ns.mean() / 4 else np.ones(len(excess_ns), np.bool_)


# A mean over steps, and how sure it is --------------------------------------------------------------------------------


MOST_STEPS: Final = 10
"""Of a block. What comes and goes within so many steps is the same in all blocks of a long run."""
BLOCKS: Final = 10
"""So many at least, of fewer steps each in a run that is too short."""
USUALLY: Final = 0.975
"""Of all means lie below the upper end of an interval of 95 %."""
NEARLY_ALWAYS: Final = 0.9995


@dataclass(frozen=True, slots=True)
class Average:
    """`low` and `high` hold the mean with 95 %; `z` is the mean in its standard errors, and `seldom` what it exceeds by
    chance in one of 2000 cases. Means are in ns."""

    mean: float
    low: float
    high: float
    z: float
    seldom: float


def average(steps: Ints) -> Average:
    """Of one value per step, in their order; one at least."""
    block = min(MOST_STEPS, max(1, len(steps) // BLOCKS))
    means = steps[: len(steps) // block * block].reshape(-1, block).mean(axis=1)
    mean = float(steps.mean())
    if len(means) < 2:
        return Average(mean, float("-inf"), float("inf"), 0.0, float("inf"))
    error = float(means.std(ddof=1)) / len(means) ** 0.5
    freedom = len(means) - 1
    reach = student_quantile(freedom, USUALLY) * error
    return Average(mean, mean - reach, mean + reach, mean / max(error, 1.0), student_quantile(freedom, NEARLY_ALWAYS))
