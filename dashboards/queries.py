"""PromQL of the panels. Every number is a quotient of two counters, so that it is right for any number of ranks.

`per_step` and `share` tell of the last `$window`, rates; `whole_…` of the run from its first step on, the counters
themselves: that works for a run that is over and whose counters stand still, too.
"""

from __future__ import annotations

from typing import Final

RUN: Final = 'ddptrace_run_id="$run"'
BASELINE: Final = 'ddptrace_run_id="$baseline"'
RANKS: Final = f'{RUN}, ddptrace_rank=~"$rank"'

BY_RANK: Final = ("ddptrace_rank",)
BY_BUCKET: Final = ("ddptrace_bucket_reducer", "ddptrace_bucket_index")
BY_OP: Final = ("ddptrace_collective_op", "ddptrace_collective_group")

STEP: Final = "ddptrace_step_duration_seconds"
PHASE: Final = "ddptrace_phase_time_seconds_total"
BREAKDOWN: Final = "ddptrace_breakdown_time_seconds_total"
COMM: Final = "ddptrace_comm_time_seconds_total"
WAIT: Final = "ddptrace_comm_wait_seconds_total"
BUCKET: Final = "ddptrace_bucket_duration_seconds"
BUCKET_EXPOSED: Final = "ddptrace_bucket_exposed_time_seconds_total"
BUCKET_HIDDEN: Final = "ddptrace_bucket_hidden_time_seconds_total"
BUCKET_SIZE: Final = "ddptrace_bucket_size_bytes"
CALLS: Final = "ddptrace_collective_calls_total"
IO: Final = "ddptrace_collective_io_bytes_total"
COLLECTIVE: Final = "ddptrace_collective_time_seconds_total"
BANDWIDTH: Final = "ddptrace_collective_bus_bandwidth_bytes_per_second"
PEERS: Final = "ddptrace_collective_wait_for_peers_seconds_total"
SKEW: Final = "ddptrace_collective_skew_seconds"
LAST: Final = "ddptrace_collective_last_total"
LATENESS: Final = "ddptrace_collective_lateness_seconds_total"
RECORDS_LOST: Final = "ddptrace_records_dropped_total"
STEPS_LOST: Final = "ddptrace_steps_dropped_total"
LAST_STEP: Final = "ddptrace_step_last"
RECORD_TIME: Final = "ddptrace_record_time_seconds"

EXPOSED: Final = 'ddptrace_overlap="exposed"'
HIDDEN: Final = 'ddptrace_overlap="hidden"'


def part(name: str) -> str:
    return f'ddptrace_part="{name}"'


def series(metric: str, *where: str) -> str:
    return f"{metric}{{{', '.join(where)}}}"


def rate(metric: str, *where: str, by: tuple[str, ...] = ()) -> str:
    """Per second over the last `$window`, added up over all but the labels `by`."""
    return _sum(f"rate({series(metric, *where)}[$window])", by)


def whole(metric: str, *where: str, by: tuple[str, ...] = ()) -> str:
    """From the run's first step to the end of the dashboard's time, wherever in that the run ended."""
    return _sum(f"last_over_time({series(metric, *where)}[$__range])", by)


def _sum(expression: str, by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def per_step(metric: str, *where: str, by: tuple[str, ...] = (), ranks: str = RANKS) -> str:
    """In one step of one rank, on average over the last `$window`."""
    return _divide(rate(metric, ranks, *where, by=by), rate(f"{STEP}_count", ranks, by=_shared(by)), by)


def whole_per_step(metric: str, *where: str, by: tuple[str, ...] = (), ranks: str = RANKS) -> str:
    return _divide(whole(metric, ranks, *where, by=by), whole(f"{STEP}_count", ranks, by=_shared(by)), by)


def share(metric: str, where: str, *, by: tuple[str, ...] = (), ranks: str = RANKS) -> str:
    """What the series with `where` are of all series of the metric, 0 to 1."""
    return _divide(rate(metric, ranks, where, by=by), rate(metric, ranks, by=by), by, by)


def whole_share(metric: str, where: str, *, by: tuple[str, ...] = (), ranks: str = RANKS) -> str:
    return _divide(whole(metric, ranks, where, by=by), whole(metric, ranks, by=by), by, by)


def mean(histogram: str, *, by: tuple[str, ...] = (), ranks: str = RANKS) -> str:
    """Of all that was observed in the last `$window`: exact, unlike a quantile, which is as coarse as the bounds."""
    return _divide(rate(f"{histogram}_sum", ranks, by=by), rate(f"{histogram}_count", ranks, by=by), by, by)


def whole_mean(histogram: str, *, by: tuple[str, ...] = (), ranks: str = RANKS) -> str:
    return _divide(whole(f"{histogram}_sum", ranks, by=by), whole(f"{histogram}_count", ranks, by=by), by, by)


def quantile(level: float, histogram: str, *, by: tuple[str, ...] = (), ranks: str = RANKS) -> str:
    return f"histogram_quantile({level}, {rate(f'{histogram}_bucket', ranks, by=('le', *by))})"


def lateness(by_rank: str, of_run: str) -> str:
    """Without clocks: a late rank comes last, waits least, and so communicates least. What each rank communicates less
    than the one that does most, against the mean step."""
    return f"(scalar(max({by_rank})) - {by_rank}) / scalar({of_run})"


def _shared(by: tuple[str, ...]) -> tuple[str, ...]:
    """Steps are counted by rank and by nothing else."""
    return tuple(label for label in by if label in BY_RANK)


def _divide(above: str, below: str, by: tuple[str, ...], below_by: tuple[str, ...] | None = None) -> str:
    """Nothing where nothing happened, rather than 0 / 0."""
    shared = _shared(by) if below_by is None else below_by
    match = "" if shared == by else f" on ({', '.join(shared)}) group_left ()"
    return f"{above} /{match} ({below} > 0)"
