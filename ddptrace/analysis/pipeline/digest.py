"""What a typical turn of each pipeline costs, and by which stage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean, median
from typing import Final

from ddptrace.analysis.pipeline.schedule import Computation, Orders, computation_of, length, of_typical_stage, spent
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.parallelism import BubbleRow, PipelineRow

PARTS: Final = ("compute_ns", "bubble_ns", "stage_wait_ns", "transfer_ns", "other_ns")

MOST_TURNS_RATIO: Final = 0.8
"""Of the turns, in which one stage must be the slowest."""
SLOWER_MIN_RATIO: Final = 1.1
"""Of a typical stage's time."""
COST_MIN_RATIO: Final = 0.05
"""Of the turn."""


@dataclass(frozen=True, slots=True)
class RankTurn:
    """One rank's mean turn. The parts after `window_ns` add up to it, but for rounding."""

    rank: int
    stages: tuple[int, ...]
    window_ns: int
    compute_ns: int
    bubble_ns: int
    stage_wait_ns: int
    transfer_ns: int
    other_ns: int


@dataclass(frozen=True, slots=True)
class SlowStage:
    """The stage that computes longest."""

    stage: int
    rank: int
    microbatch_ns: int  # forward and backward of one microbatch
    typical_ns: int  # the same of a typical stage
    costs_ns: int  # so much shorter would a turn be if it were as fast as that


@dataclass(frozen=True, slots=True)
class PipelineDigest:
    """One pipeline: means over its typical turns."""

    pipeline: int
    schedule: str
    stages: int
    microbatches: int
    turn: int  # that of median length of them
    turns: int
    steps: int  # that these turns are in
    window_ns: int
    ideal_window_ns: int  # as in `bubbles`, as the next one
    ideal_bubble_ns: int
    ranks: tuple[RankTurn, ...]
    slowest: SlowStage | None

    @property
    def bubble_ns(self) -> int:
        """Mean of the ranks."""
        return round(fmean(rank.bubble_ns for rank in self.ranks))

    @property
    def bubble_matters(self) -> bool:
        return self.bubble_ns >= COST_MIN_RATIO * self.window_ns

    @property
    def slow(self) -> SlowStage | None:
        """The slowest stage, if it takes so much longer that the others wait for it."""
        one = self.slowest
        if one is None or one.microbatch_ns < SLOWER_MIN_RATIO * one.typical_ns:
            return None
        return one if one.costs_ns >= COST_MIN_RATIO * self.window_ns else None


def idle_in_pipelines_ns(digests: Iterable[PipelineDigest], ranks: int) -> float:
    """Return what of a step the ranks are idle on average, for bubbles and slow stages. Most of it, they are blocked on
    messages. `ranks`: those of the run."""
    return sum(
        (rank.bubble_ns + rank.stage_wait_ns) * digest.turns / digest.steps / ranks
        for digest in digests
        for rank in digest.ranks
    )


def slowest_stage(digests: Sequence[PipelineDigest]) -> PipelineDigest | None:
    """Return the pipeline whose slow stage costs most; None if none has one."""
    found = [(one.slow.costs_ns, -one.pipeline, one) for one in digests if one.slow is not None]
    return max(found)[-1] if found else None


def largest_bubble(digests: Sequence[PipelineDigest]) -> PipelineDigest | None:
    """Return the pipeline with the longest bubble that matters; None if none has one."""
    return max((one for one in digests if one.bubble_matters), key=lambda one: one.bubble_ns, default=None)


def pipeline_digests(result: Result) -> list[PipelineDigest]:
    """In the order of their numbers; none of those of which no turn is known whole."""
    bubbles: defaultdict[int, list[BubbleRow]] = defaultdict(list)
    for row in result.bubbles:
        bubbles[row.pipeline].append(row)
    computations: defaultdict[int, list[PipelineRow]] = defaultdict(list)
    for one in result.pipeline:
        computations[one.pipeline].append(one)
    return [_digest(number, mine, computations[number]) for number, mine in sorted(bubbles.items())]


def _digest(number: int, rows: Sequence[BubbleRow], computations: Sequence[PipelineRow]) -> PipelineDigest:
    turns = _typical_turns(rows)
    rows = [row for row in rows if row.turn in turns]
    by_rank: defaultdict[int, list[BubbleRow]] = defaultdict(list)
    for row in rows:
        by_rank[row.rank].append(row)
    window, ideal, bubble = (_mean(rows, name) for name in ("window_ns", "ideal_window_ns", "ideal_bubble_ns"))
    return PipelineDigest(
        number,
        rows[0].schedule,
        len({stage for row in rows for stage in row.stages}),
        rows[0].microbatches,
        turns[len(turns) // 2],
        len(turns),
        len({row.step for row in rows}),
        window,
        ideal,
        bubble,
        tuple(
            RankTurn(rank, mine[0].stages, _mean(mine, "window_ns"), *(_mean(mine, part) for part in PARTS))
            for rank, mine in sorted(by_rank.items())
        ),
        _slow_stage([row for row in computations if row.turn in turns]),
    )


def _typical_turns(rows: Iterable[BubbleRow]) -> list[int]:
    """Choose the middle half by length, without the first, which prepares, where there are others; shortest first."""
    lengths = {row.turn: row.window_ns for row in rows}
    steady = sorted((length, turn) for turn, length in lengths.items() if turn or len(lengths) == 1)
    cut = len(steady) // 4
    return [turn for _, turn in steady[cut : len(steady) - cut]]


def _mean(rows: Sequence[BubbleRow], name: str) -> int:
    return round(fmean(map(attrgetter(name), rows)))


def _slow_stage(rows: Sequence[PipelineRow]) -> SlowStage | None:
    """None if there is but one stage, if now one is slowest and now another, or if turns are not all in one order."""
    ranks = {row.stage: row.rank for row in rows}
    slowest = _slowest(rows)
    if len(ranks) < 2 or slowest is None:
        return None
    orders, durations = _median_turn(rows)
    typical = of_typical_stage(durations)
    as_typical = {one: min(ns, typical[one]) if one.stage == slowest else ns for one, ns in durations.items()}
    now, then = length(orders, durations), length(orders, as_typical)
    if now is None or then is None:
        return None
    own = [one for one in durations if one.stage == slowest]
    microbatches = len({one.microbatch for one in own})
    took, usual = (spent(own, each) // microbatches for each in (durations, typical))
    return SlowStage(slowest, ranks[slowest], took, usual, now - then)


def _slowest(rows: Iterable[PipelineRow]) -> int | None:
    """The stage that computes longest in most turns; None if none does."""
    times: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        times[row.turn][row.stage] += row.end_at_ns - row.begin_at_ns
    slowest = Counter(stages.most_common(1)[0][0] for stages in times.values())
    stage, count = slowest.most_common(1)[0]
    return stage if count >= MOST_TURNS_RATIO * len(times) else None


def _median_turn(rows: Sequence[PipelineRow]) -> tuple[Orders, Mapping[Computation, int]]:
    """By rank the order of the last turn, and each computation's median over the turns."""
    spans: defaultdict[Computation, list[int]] = defaultdict(list)
    for row in rows:
        spans[computation_of(row)].append(row.end_at_ns - row.begin_at_ns)
    last = max(row.turn for row in rows)
    orders: defaultdict[int, list[Computation]] = defaultdict(list)
    for row in sorted((row for row in rows if row.turn == last), key=attrgetter("begin_at_ns")):
        orders[row.rank].append(computation_of(row))
    return list(orders.values()), {one: round(median(every)) for one, every in spans.items()}
