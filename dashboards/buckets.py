"""Which gradient bucket is not hidden, and what else is sent?"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from dashboards import queries as q
from dashboards.frame import framed, rank_variable, window_variable
from dashboards.parts import (
    BYTES,
    BYTES_PER_S,
    COUNT,
    GREEN,
    ORANGE,
    RATIO,
    RED,
    SECONDS,
    Column,
    Query,
    cells,
    heat,
    lines,
    stack,
)

NAME = "bucket {{ddptrace_bucket_index}} of reducer {{ddptrace_bucket_reducer}}"
OP = "{{ddptrace_collective_op}} in {{ddptrace_collective_group}}"
SIZE = f"max by ({', '.join(q.BY_BUCKET)}) (last_over_time({q.series(q.BUCKET_SIZE, q.RANKS)}[$__range]))"
HIDDEN, EXPOSED = (q.whole(one, q.RANKS, by=q.BY_BUCKET) for one in (q.BUCKET_HIDDEN, q.BUCKET_EXPOSED))
EXECUTION = q.whole(f"{q.BUCKET}_sum", q.RANKS, by=q.BY_BUCKET)
HIDDEN_SHARE = f"{HIDDEN} / ({EXECUTION} > 0)"


def buckets() -> Dashboard:
    says = (
        "Gradient buckets: which one is exposed, how long each takes and how large it is; then all other collectives."
    )
    made = framed("ddptrace-buckets", "ddptrace: buckets", says)
    made.with_variable(rank_variable()).with_variable(window_variable())
    for add in (_ranking, _over_time, _collectives):
        add(made)
    return made


def _ranking(made: Dashboard) -> None:
    made.with_row(Row("From the run's first step on: the most exposed bucket first"))
    made.with_panel(cells(
        "Buckets",
        "In launch order, so bucket 0 holds the model's last parameters. Exposed per step is what hiding this bucket "
        "would win. The last bucket is always the hardest to hide: nothing is left to compute; make it smaller "
        "(bucket_cap_mb_list, or a smaller bucket_cap_mb). If all are exposed, communication is longer than backward: "
        "compress, accumulate, or use a faster link. `ddptrace analyze RUN` names the parameters.",
        Column("exposed per step", q.whole_per_step(q.BUCKET_EXPOSED, by=q.BY_BUCKET), SECONDS),
        Column("execution", q.whole_mean(q.BUCKET, by=q.BY_BUCKET), SECONDS),
        Column("hidden", HIDDEN_SHARE, RATIO, ((None, RED), (0.5, ORANGE), (0.8, GREEN))),
        Column("size", SIZE, BYTES),
        Column("bytes per second", f"{SIZE} / ({q.whole_mean(q.BUCKET, by=q.BY_BUCKET)} > 0)", BYTES_PER_S),
        sort_by="exposed per step",
    ))  # fmt: skip


def _over_time(made: Dashboard) -> None:
    made.with_row(Row("Over time"))
    exposed, slow = q.per_step(q.BUCKET_EXPOSED, by=q.BY_BUCKET), q.quantile(0.95, q.BUCKET, by=q.BY_BUCKET)
    hidden = f"{q.rate(q.BUCKET_HIDDEN, q.RANKS, by=q.BY_BUCKET)} / " \
             f"({q.rate(f'{q.BUCKET}_sum', q.RANKS, by=q.BY_BUCKET)} > 0)"  # fmt: skip
    for panel in (
        stack("Exposed communication of a step, by bucket", "Each exposed instant is charged to one collective, the "
              "one that began first, so the areas add up. The upper edge stays below the step's exposed communication "
              "by what other collectives are charged.", SECONDS, Query(exposed, NAME)),
        lines("Execution of a bucket", "Mean time on the wire, waiting for late ranks included. One that grows while "
              "its size stays: the network, or a late rank.", SECONDS, Query(q.mean(q.BUCKET, by=q.BY_BUCKET), NAME)),
        lines("Hidden share of a bucket", "1: wholly under compute.", RATIO, Query(hidden, NAME)),
        lines("Slow executions", "19 of 20 executions are shorter (95 %). Far above the mean: bursts of something "
              "else on the link, or a rank that is late now and then. As coarse as the histogram's bounds: 1, 2, 5, "
              "10.", SECONDS, Query(slow, NAME)),
        heat("How long buckets take", "Executions per second by their length, all buckets together.", SECONDS,
             q.rate(f"{q.BUCKET}_bucket", q.RANKS, by=("le",))),
        lines("Bucket sizes", "Bytes of its gradients. A step in this line: the reducer rebuilt its buckets, which "
              "stock DDP does once, after the first iteration.", BYTES,
              Query(f"max by ({', '.join(q.BY_BUCKET)}) ({q.series(q.BUCKET_SIZE, q.RANKS)})", NAME)),
    ):  # fmt: skip
        made.with_panel(panel)


def _collectives(made: Dashboard) -> None:
    made.with_row(Row("All collectives, by operation and process group"))
    calls, io = (q.whole_per_step(one, by=q.BY_OP) for one in (q.CALLS, q.IO))
    made.with_panel(cells(
        "Collectives of a step",
        "What one rank issues in a step, buckets included. Many calls with few bytes each: latency; batch them, or "
        "raise bucket_cap_mb. Operations you did not expect: `ddptrace traffic RUN` names the line of the program.",
        Column("calls", calls), Column("bytes", io, BYTES),
        Column("execution", q.whole_per_step(q.COLLECTIVE, by=q.BY_OP), SECONDS),
        sort_by="bytes",
    ))  # fmt: skip
    for panel in (
        lines("Calls per step", "Of one rank. It should be flat.", COUNT, Query(q.per_step(q.CALLS, by=q.BY_OP), OP)),
        lines("Bus bandwidth", "Median over calls, waiting for late ranks included. As coarse as the histogram's "
              "bounds: 1, 2, 5, 10.", BYTES_PER_S, Query(q.quantile(0.5, q.BANDWIDTH, by=q.BY_OP), OP)),
    ):  # fmt: skip
        made.with_panel(panel)
