"""Which rank is late, by how much, and in what?"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from dashboards import queries as q
from dashboards.frame import framed, rank_variable, window_variable
from dashboards.parts import COUNT, GREEN, ORANGE, RATIO, RED, SECONDS, Column, Query, bars, cells, lines, number

RANK = "rank {{ddptrace_rank}}"
WHOLE_COMM = q.whole_per_step(q.COMM, by=q.BY_RANK)
LATE = ((None, GREEN), (0.05, ORANGE), (0.1, RED))
NO_CLOCKS = (
    "A late rank comes last to collectives and waits for nobody, so it communicates least. This is what each rank "
    "communicates less than the one that does most, as a share of the step: it needs no clocks, so it works across "
    "hosts. It means nothing where ranks do different work, as in pipeline parallelism."
)


def ranks() -> Dashboard:
    says = "Who makes the others wait, how much that costs, and in which part of its step it loses the time."
    made = framed("ddptrace-ranks", "ddptrace: ranks and stragglers", says)
    made.with_variable(rank_variable()).with_variable(window_variable())
    for add in (_who, _cost, _why, _alive):
        add(made)
    return made


def _who(made: Dashboard) -> None:
    made.with_row(Row("Who is late"))
    whole = q.lateness(WHOLE_COMM, q.whole_mean(q.STEP))
    now = q.lateness(q.per_step(q.COMM, by=q.BY_RANK), q.mean(q.STEP))
    made.with_panel(bars("Lateness from the run's first step on", NO_CLOCKS + " Red: look at why, below.", RATIO,
                         Query(whole, RANK), steps=LATE, width=8))  # fmt: skip
    made.with_panel(lines("Lateness now", NO_CLOCKS, RATIO, Query(now, RANK), steps=LATE, width=16))
    made.with_panel(cells(
        "Ranks, from the run's first step on",
        "Compute and data wait above the others': that rank has more work or a slower device. Only communication below "
        "them: something outside of the training thread stops it. `ddptrace analyze RUN` says which part of the step, "
        "how surely, and what the host was busy with then.",
        Column("step", q.whole_mean(q.STEP, by=q.BY_RANK), SECONDS),
        Column("communication", WHOLE_COMM, SECONDS),
        Column("compute", q.whole_per_step(q.BREAKDOWN, q.part("compute"), by=q.BY_RANK), SECONDS),
        Column("idle", q.whole_per_step(q.BREAKDOWN, q.part("idle"), by=q.BY_RANK), SECONDS),
        Column("data wait", q.whole_per_step(q.PHASE, 'ddptrace_phase="data"', by=q.BY_RANK), SECONDS),
        Column("lateness", whole, RATIO, LATE),
        sort_by="lateness",
    ))  # fmt: skip


def _cost(made: Dashboard) -> None:
    made.with_row(
        Row("What it costs, by arrivals (ranks of one host while a job runs; all ranks after `ddptrace export`)")
    )
    last = f"{q.whole(q.LAST, q.RANKS, by=q.BY_RANK)} / scalar({q.whole(q.LAST, q.RANKS)})"
    group = ("ddptrace_collective_group",)
    for panel in (
        lines("Lost to this rank", "Time per step in which all others had arrived at a collective and waited for this "
              "rank alone. What it costs is a little less where they had other work in flight: ddptrace analyze RUN "
              "tells.", SECONDS, Query(q.per_step(q.LATENESS, by=q.BY_RANK), RANK)),
        lines("Waits for others", "Time per step that a rank waited inside collectives for the last one. It shows up "
              "in the ranks that are not late.", SECONDS, Query(q.per_step(q.PEERS, by=q.BY_RANK), RANK)),
        bars("Came last", "Share of collectives, from the run's first step on. All alike: no one rank is to blame. "
             "How often says nothing of how much: look left.", RATIO, Query(last, RANK), width=8),
        lines("Skew of a collective", "First arrival to last, mean. What it costs is spread over all ranks but the "
              "last.", SECONDS, Query(q.mean(q.SKEW, by=group), "{{ddptrace_collective_group}} mean"), width=8),
        lines("Worst skews", "19 of 20 collectives have a smaller skew (95 %). As coarse as the histogram's bounds: "
              "1, 2, 5, 10.", SECONDS, Query(q.quantile(0.95, q.SKEW, by=group), "{{ddptrace_collective_group}}"),
              width=8),
    ):  # fmt: skip
        made.with_panel(panel)


def _why(made: Dashboard) -> None:
    made.with_row(Row("Why: parts of the step that differ between ranks"))
    for title, phase, says in (
        ("Data wait", "data", "A rank above the others: its input pipeline or its disk."),
        ("Forward", "forward", "A rank above the others: a slower or hotter device, or longer samples."),
        ("Backward", "backward", "Waits for the others are in it: here a late rank is often the shortest."),
        ("Optimizer and other", "optimizer|other", "Checkpoints, logging and evaluation of one rank are in it."),
    ):
        by_rank = q.per_step(q.PHASE, f'ddptrace_phase=~"{phase}"', by=q.BY_RANK)
        made.with_panel(lines(title, f"Per step. {says}", SECONDS, Query(by_rank, RANK), width=6))
    compute = q.per_step(q.BREAKDOWN, q.part("compute"), by=q.BY_RANK)
    made.with_panel(lines("Compute", "Per step. A rank above the others has more to do, or is slower.", SECONDS,
                          Query(compute, RANK)))  # fmt: skip
    made.with_panel(lines("Communication", "Per step, waiting included. The late rank is the lowest line.", SECONDS,
                          Query(q.per_step(q.COMM, by=q.BY_RANK), RANK)))  # fmt: skip


def _alive(made: Dashboard) -> None:
    made.with_row(Row("Who still trains"))
    last, beat = q.series(q.LAST_STEP, q.RANKS), q.series(q.RECORD_TIME, q.RANKS)
    for panel in (
        number("Steps apart", "Between the rank that is furthest and the one that is least far. Ranks that train "
               "together differ by one or two, by what has not been read yet.",
               f"max({last}) - min({last})", COUNT, ((None, GREEN), (5, ORANGE), (20, RED)), width=4),
        lines("Newest step", "Ordinal. Flat lines: the job hangs or is over. One that is flat alone: that rank died, "
              "or its exporter.", COUNT, Query(last, RANK), width=10),
        lines("Age of the newest record", "Of each rank. All grow together: the job hangs; `ddptrace diagnose RUN`.",
              SECONDS, Query(f"time() - {beat}", RANK), width=10),
    ):  # fmt: skip
        made.with_panel(panel)
