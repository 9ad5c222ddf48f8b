"""What DDP's broadcasts of buffers cost the typical step, over all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from statistics import fmean

from ddptrace.analysis.collectives.buffers import BufferTime
from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps


def buffer_cost(ranks: Sequence[RankFacts], result: Result) -> tuple[float, float] | None:
    """How long the broadcasts hold the host in a typical step, and what that costs, in ns; None where there are none.
    Of each step the rank counts that they cost least: the others may have waited for it."""
    steps = {(row.rank, row.step) for row in measured_steps(result.steps)[0]}
    by_step: defaultdict[int, list[BufferTime]] = defaultdict(list)
    for rank in ranks:
        for time in rank.buffers:
            if (rank.rank, time.step) in steps:
                by_step[time.step].append(time)
    if not by_step:
        return None
    least = [min(times, key=attrgetter("cost_ns")) for times in by_step.values()]
    share = len(least) / len({step for _, step in steps})
    host, cost = (fmean(one) * share for one in zip(*((time.host_ns, time.cost_ns) for time in least), strict=True))
    return host, cost
