"""How is the job doing, and where does its step time go? The first one to open."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from dashboards import queries as q
from dashboards.frame import FIRING, framed, rank_variable, window_variable
from dashboards.parts import (
    BAD_ABOVE_SHARE,
    BAD_FROM_ONE,
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
    number,
    stack,
)

STEP_BY_RANK = q.mean(q.STEP, by=q.BY_RANK)
COMM_BY_RANK = q.per_step(q.COMM, by=q.BY_RANK)
LATENESS = q.lateness(COMM_BY_RANK, q.mean(q.STEP))
AGE = f"time() - max(last_over_time({q.series(q.RECORD_TIME, q.RUN)}[$__range]))"
LOST = f"{q.whole(q.RECORDS_LOST, q.RUN)} + {q.whole(q.STEPS_LOST, q.RUN)}"
GOOD_OVERLAP = ((None, RED), (0.5, ORANGE), (0.8, GREEN))


def overview() -> Dashboard:
    says = "Step time, where it goes, how well communication is hidden, and whether the numbers can be trusted."
    made = framed("ddptrace-overview", "ddptrace: job overview", says)
    made.with_variable(rank_variable()).with_variable(window_variable())
    for add in (_now, _step, _communication, _whole_run, _trust):
        add(made)
    return made


def _now(made: Dashboard) -> None:
    made.with_row(Row("Now"))
    for panel in (
        number("Step time", "Mean wall time of a step. What all of this is about: everything below says why it is not "
               "shorter.", q.mean(q.STEP), SECONDS),
        number("Overlap", "Share of the communication that ran under compute. Low: the gradients' communication is "
               "not hidden behind backward. Look at Buckets: which bucket is exposed?",
               q.share(q.COMM, q.HIDDEN), RATIO, GOOD_OVERLAP),
        number("Exposed communication", "Share of the step in which a rank did nothing but communicate. This is what "
               "perfect overlap would win. Above 15 %: `ddptrace analyze RUN` says which buckets, and what to change.",
               q.share(q.BREAKDOWN, q.part("exposed_comm")), RATIO, BAD_ABOVE_SHARE),
        number("Latest rank", "What the rank that communicates least does so less than the one that does most, as a "
               "share of the step. A late rank comes last to collectives and waits for nobody. Above 5 %: open Ranks.",
               f"max({LATENESS})", RATIO, ((None, GREEN), (0.05, ORANGE), (0.1, RED))),
        number("Idle", "Share of the step in which a rank neither computed nor communicated nor copied. High: it waits "
               "for data or for the host; look at the phases below.",
               q.share(q.BREAKDOWN, q.part("idle")), RATIO, ((None, GREEN), (0.1, ORANGE), (0.3, RED))),
        number("Newest record", "Age of the run's newest record. It grows where the job hangs or is over. Hangs: "
               "`ddptrace diagnose RUN` says who waits for whom.",
               AGE, SECONDS, ((None, GREEN), (60, ORANGE), (300, RED))),
        number("Ranks", "How many ranks tell of themselves. Fewer than were started: no exporter runs on their host.",
               f"count(last_over_time({q.series(q.LAST_STEP, q.RUN)}[$__range]))", COUNT),
        number("Missing", "Records and steps that did not reach these numbers, from the run's start. From 1 on sums "
               "are too low; `ddptrace analyze RUN` says why and of which ranks.", LOST, COUNT, BAD_FROM_ONE),
    ):  # fmt: skip
        made.with_panel(panel)


def _step(made: Dashboard) -> None:
    made.with_row(Row("Where the step goes"))
    breakdown, phases = q.per_step(q.BREAKDOWN, by=("ddptrace_part",)), q.per_step(q.PHASE, by=("ddptrace_phase",))
    seconds = q.rate(f"{q.STEP}_bucket", q.RANKS, by=("le",))
    for panel in (
        stack("Breakdown of a step", "Each instant is compute, else exposed communication, else exposed memory copy, "
              "else idle; the upper edge is the step. Red is what better overlap wins, grey what a faster input "
              "pipeline or less host work wins.", SECONDS, Query(breakdown, "{{ddptrace_part}}")),
        stack("Phases of a step", "What the training thread was in. Waits for communication are inside backward. Much "
              "yellow (data): more workers for the loader.", SECONDS, Query(phases, "{{ddptrace_phase}}")),
        lines("Step time by rank", "Mean wall time of a step. Ranks that train together take equally long, since they "
              "wait for each other: who makes them wait is on Ranks.", SECONDS,
              Query(STEP_BY_RANK, "rank {{ddptrace_rank}}")),
        heat("How long steps take", "Steps per second by their length. Two bands: some steps do more (a checkpoint, "
             "an evaluation, a collection of garbage). Bands are as coarse as the histogram's bounds: 1, 2, 5, 10.",
             SECONDS, seconds),
    ):  # fmt: skip
        made.with_panel(panel)


def _communication(made: Dashboard) -> None:
    made.with_row(Row("Communication"))
    by_op = ("ddptrace_collective_op",)
    for panel in (
        stack("Hidden and exposed communication of a step", "Time in which any collective ran: under compute (green) "
              "and not (red). Overlap is green ÷ both.", SECONDS,
              Query(q.per_step(q.COMM, by=("ddptrace_overlap",)), "{{ddptrace_overlap}}")),
        lines("Overlap by rank", "Hidden share of the communication. One rank below the others: its compute is "
              "shorter, or it waits for them.", RATIO,
              Query(q.share(q.COMM, q.HIDDEN, by=q.BY_RANK), "rank {{ddptrace_rank}}")),
        lines("Bytes of a step", "Size of the tensors that one rank hands to collectives in a step. It changes only "
              "where the program does: gradient accumulation, compression, another batch of experts.", BYTES,
              Query(q.per_step(q.IO, by=by_op), "{{ddptrace_collective_op}}")),
        lines("Bus bandwidth", "Median over calls, as nccl-tests define it: comparable between operations and with "
              "the link's speed. Far below the link with large buckets: the network; with small ones: latency, raise "
              "bucket_cap_mb. It contains waiting for late ranks. As coarse as the histogram's bounds: 1, 2, 5, 10.",
              BYTES_PER_S, Query(q.quantile(0.5, q.BANDWIDTH, by=by_op), "{{ddptrace_collective_op}}")),
    ):  # fmt: skip
        made.with_panel(panel)


def _whole_run(made: Dashboard) -> None:
    made.with_row(Row("From the run's first step on (also of a run that is over)"))
    for panel in (
        number("Steps", "Steps of one rank that these numbers count, of the rank that has most.",
               f"max({q.whole(f'{q.STEP}_count', q.RANKS, by=q.BY_RANK)})", COUNT, width=4),
        number("Step time", "Mean over all steps, the slow first ones included.",
               q.whole_mean(q.STEP), SECONDS, width=4),
        number("Overlap", "Share of all communication that ran under compute.",
               q.whole_share(q.COMM, q.HIDDEN), RATIO, GOOD_OVERLAP, width=4),
        number("Exposed communication", "Share of all step time.",
               q.whole_share(q.BREAKDOWN, q.part("exposed_comm")), RATIO, BAD_ABOVE_SHARE, width=4),
        number("Idle", "Share of all step time.", q.whole_share(q.BREAKDOWN, q.part("idle")), RATIO, width=4),
        number("Host blocked", "Time per step in which the training thread was blocked on collectives. On a GPU much "
               "less than what is exposed: there the device waits, not the host.", q.whole_per_step(q.WAIT), SECONDS,
               width=4),
    ):  # fmt: skip
        made.with_panel(panel)


def _trust(made: Dashboard) -> None:
    made.with_row(Row("Can these numbers be trusted?"))
    facts = ("ddptrace_rank", "host_name", "ddptrace_world_size", "ddptrace_backend", "ddptrace_torch_version")
    lost = f"{q.series(q.RECORDS_LOST, q.RANKS)} or {q.series(q.STEPS_LOST, q.RANKS)}"
    for panel in (
        cells("Alerts that fire", "Of this run, from dashboards/prometheus/rules.yml. Empty: none fires, or the rules "
              "are not loaded.", Column("firing", f"sum by (alertname, ddptrace_rank) ({FIRING})"), width=8),
        cells("What is missing", "Records (or, unread, steps) that these numbers lack, by rank and why. All 0: "
              "nothing is.",
              Column("missing", f"sum by (ddptrace_rank, ddptrace_reason) ({lost})", COUNT, BAD_FROM_ONE),
              sort_by="missing", width=8),
        cells("Ranks", "Where each rank runs, and on what.",
              Column("up", f"max by ({', '.join(facts)}) (last_over_time({q.series('ddptrace_run_info', q.RANKS)}"
                     "[$__range]))"), width=8),
    ):  # fmt: skip
        made.with_panel(panel)
