"""Times several things side by side, so that a disturbance of the machine disturbs all alike.

round 0   warm up A, time A A A | warm up C, time C C C | warm up B, time B B B
round 1   warm up B, time B B B | warm up A, time A A A | ...                        the order changes each round

Two things are compared by the ratio of their medians within one round. Measuring one of them under two names gives the
null control: its ratio differs from 1 only by noise.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from ddptrace.bench.experiment import Repeats
from ddptrace.bench.job import Job
from ddptrace.bench.statistics import Spread

Rounds = Sequence[Sequence[int]]
"""Times in ns by round and step, each of the slowest rank."""


Around = Callable[[str, int], AbstractContextManager[object]]


def _nothing(name: str, round_: int) -> AbstractContextManager[object]:
    return nullcontext()


def interleaved(
    job: Job, things: Mapping[str, Callable[[], None]], repeats: Repeats, around: Around = _nothing
) -> dict[str, list[list[int]]]:
    """Time each thing. Returns its times by round. Collective: every rank passes the same names in the same order.

    `around(name, round)` returns the context in which a thing is warmed up and timed in a round.
    """
    chance, times = random.Random(0), {name: list[list[int]]() for name in things}
    for round_ in range(repeats.rounds):
        names = list(things)
        chance.shuffle(names)
        for name in names:
            with around(name, round_):
                times[name].append(_block(job, things[name], repeats))
        job.say(f"round {round_ + 1} of {repeats.rounds}")
    return times


def _block(job: Job, thing: Callable[[], None], repeats: Repeats) -> list[int]:
    for _ in range(repeats.warmup):
        thing()
    times = []
    for _ in range(repeats.steps):
        job.meet()
        begin = time.perf_counter_ns()
        thing()
        job.finish()
        times.append(time.perf_counter_ns() - begin)
    return job.slowest(times)


def spread(rounds: Rounds) -> Spread:
    """Return the spread of the rounds' medians, in ns."""
    return Spread.of([statistics.median(times) for times in rounds])


def ratio(rounds: Rounds, reference: Rounds) -> Spread:
    """Return the spread of each round's median over the reference's median in the same round."""
    pairs = zip(rounds, reference, strict=True)
    return Spread.of([statistics.median(times) / statistics.median(others) for times, others in pairs])
