"""Ranks that train data-parallel, made by hand for what-if questions. The truth is worked out here, event by event, for
a backend with one worker: a collective begins when the last rank has launched it and the one before is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddptrace.load.tables import Call, Group, HostLoad, HostMark, Layout, PhaseMark, RankRun, Ready, StepMark
from ddptrace.schema import Phase
from tests.unit.analysis_records import ddp_call, mark, rank, ready, reducer, step

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Made:
    """Times in ns, bytes 4 x numel. `gaps`: backward's work until the last parameter's gradient is ready, the last but
    one's, and so on. `small`: bytes up to which a message has no latency, and a third of the time for each byte.
    `late`: by rank, what its forward takes longer. `slowdown`: of compute beside communication, which
    takes the processor away. `crowded`: by step, what other programs take from forward."""

    numels: tuple[int, ...] = (250_000,) * 8
    gaps: tuple[int, ...] = (10 * MS,) * 8
    forward: int = 40 * MS
    after: int = 2 * MS
    latency: int = 200_000
    byte_ns: float = 8.0
    small: int = 0
    late: tuple[int, ...] = (0, 0)
    slowdown: float = 0.0
    crowded: tuple[int, ...] = (0,)
    finish: int = 0  # of backward, after its last collective
    backwards: int = 1
    steps: int = 8

    def cost(self, nbytes: int) -> int:
        is_small = nbytes <= self.small and self.small
        return round(nbytes * self.byte_ns / 3) if is_small else self.latency + round(nbytes * self.byte_ns)

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(range(len(self.numels)))[::-1]


@dataclass(slots=True)
class _Rank:
    now: int = 0
    calls: tuple[Call, ...] = ()
    steps: tuple[StepMark, ...] = ()
    phases: tuple[PhaseMark, ...] = ()
    ready: tuple[Ready, ...] = ()
    marks: tuple[HostMark, ...] = ()


def made_ranks(made: Made, buckets: tuple[tuple[int, ...], ...]) -> tuple[RankRun, ...]:
    """Buckets in launch order; step 0 counts as warm-up, as always."""
    ranks = [_Rank() for _ in made.late]
    for ordinal in range(made.steps):
        _step(made, buckets, ordinal, ranks)
    plan = Layout(0, 0, buckets)
    recorded = [
        rank(
            number, groups=(Group("0", tuple(range(len(ranks))), "gloo", 1),), steps=one.steps, phases=one.phases,
            calls=one.calls, ready=one.ready, reducers=(reducer(made.numels, plan, cap=1),),
        )
        for number, one in enumerate(ranks)
    ]  # fmt: skip
    return tuple(replace(run, load=HostLoad(one.marks)) for run, one in zip(recorded, ranks, strict=True))


def step_ns(made: Made, buckets: tuple[tuple[int, ...], ...]) -> float:
    """The truth: length of a step in the steady state, mean over ranks."""
    ranks = [_Rank() for _ in made.late]
    for ordinal in range(4):
        began = [one.now for one in ranks]
        _step(made, buckets, ordinal, ranks)
    return sum(one.now - begin for one, begin in zip(ranks, began, strict=True)) / len(ranks)


def _step(made: Made, buckets: tuple[tuple[int, ...], ...], ordinal: int, ranks: list[_Rank]) -> None:
    begins, begun = [one.now for one in ranks], []
    for one, late in zip(ranks, made.late, strict=True):
        for accumulated in range(made.backwards):
            last = accumulated == made.backwards - 1
            number = ordinal * made.backwards + accumulated
            forward = made.forward + late + made.crowded[ordinal % len(made.crowded)]
            one.phases += (mark(Phase.FORWARD, one.now, one.now + forward),)
            one.now += forward
            if not last:
                one.phases += (mark(Phase.BACKWARD, one.now, one.now + sum(made.gaps), number),)
                one.now += sum(made.gaps)
        begun.append(one.now)
    ends, times = _backward(made, buckets, ranks, begun, ordinal)
    for one, begin, start, at in zip(ranks, begins, begun, times, strict=True):
        number = (ordinal + 1) * made.backwards - 1
        over = max(max(at.values()), ends[-1])
        over += made.finish
        one.phases += (mark(Phase.BACKWARD, start, over, number), mark(Phase.OPTIMIZER, over, over + made.after))
        one.ready += (ready(number, *at.items()),)
        one.now = over + made.after
        one.steps += (step(ordinal, begin, one.now),)
        lost = max(at.values()) - start - sum(made.gaps) + made.crowded[ordinal % len(made.crowded)]
        one.marks += (HostMark(begin, one.now, one.now - begin - lost, lost, 0),)


def _backward(
    made: Made, buckets: tuple[tuple[int, ...], ...], ranks: list[_Rank], begun: list[int], ordinal: int
) -> tuple[list[int], list[dict[int, int]]]:
    """Ends of the collectives, and when each gradient was ready on each rank. One nanosecond of work after the other
    would be the plainest truth; here from one end of a collective to the next."""
    sending: list[tuple[int, int]] = []
    times: list[dict[int, int]] = [{} for _ in ranks]
    for number, bucket in enumerate(buckets):
        for at, begin in zip(times, begun, strict=True):
            for parameter in made.order[len(at) : made.order.index(bucket[-1]) + 1]:
                before = max(at.values(), default=begin)
                at[parameter] = _worked(before, made.gaps[len(at)], sending, made.slowdown)
        launches = [at[bucket[-1]] for at in times]
        begin = max(*launches, sending[-1][1] if sending else 0)
        nbytes = sum(4 * made.numels[parameter] for parameter in bucket)
        sending.append((begin, begin + made.cost(nbytes)))
        for one, launch in zip(ranks, launches, strict=True):
            one.calls += (ddp_call(
                1 + ordinal * len(buckets) + number, launch, nbytes, issued_at_ns=launch, done_at_ns=sending[-1][1],
                ordinal=ordinal * len(buckets) + number,
            ),)  # fmt: skip
    return [end for _, end in sending], times


def _worked(begin: int, work: int, sending: list[tuple[int, int]], slowdown: float) -> int:
    """When so much work is done that begins then."""
    now, left = begin, float(work)
    for start, end in sending:
        alone = min(max(start - now, 0), left)
        now, left = round(now + alone), left - alone
        if left > 0 and now < end:
            beside = min((end - now) / (1 + slowdown), left)
            now, left = round(now + beside * (1 + slowdown)), left - beside
    return round(now + left)


def in_buckets(made: Made, size: int) -> tuple[tuple[int, ...], ...]:
    """So many parameters each, in the order in which they are ready."""
    return tuple(made.order[first : first + size] for first in range(0, len(made.order), size))
