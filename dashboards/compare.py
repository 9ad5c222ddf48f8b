"""Did the change help? One run against another, each from its first step on, so that neither has to be going."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row, TextBoxVariable

from dashboards import queries as q
from dashboards.frame import framed, run_variable, window_variable
from dashboards.parts import (
    BYTES,
    COUNT,
    GREEN,
    RATIO,
    RED,
    SECONDS,
    Column,
    Query,
    Steps,
    bars,
    cells,
    lines,
    number,
)

BETTER_BELOW: Steps = ((None, GREEN), (-0.02, "text"), (0.02, RED))
BETTER_ABOVE: Steps = ((None, RED), (-0.02, "text"), (0.02, GREEN))
BOTH = {"this run": q.RUN, "baseline": q.BASELINE}


def compare() -> Dashboard:
    says = "One run against another: step time, overlap, buckets, ranks. Green is better than the baseline, red worse."
    made = framed("ddptrace-compare", "ddptrace: one run against another", says)
    made.with_variable(run_variable("baseline", "Baseline", other_than="$run")).with_variable(window_variable())
    made.with_variable(TextBoxVariable("shift").label("Draw the baseline later by").default_value("1s"))
    for add in (_verdict, _parts, _details, _over_time, _facts):
        add(made)
    return made


def change(of: dict[str, str]) -> str:
    """Relative to the baseline: -0.1 is a tenth less."""
    return f"({of['this run']}) / ({of['baseline']}) - 1"


STEP = {name: q.whole_mean(q.STEP, ranks=run) for name, run in BOTH.items()}
OVERLAP = {name: q.whole_share(q.COMM, q.HIDDEN, ranks=run) for name, run in BOTH.items()}
EXPOSED = {name: q.whole_share(q.BREAKDOWN, q.part("exposed_comm"), ranks=run) for name, run in BOTH.items()}
SENT = {name: q.whole_per_step(q.IO, ranks=run) for name, run in BOTH.items()}


def _verdict(made: Dashboard) -> None:
    made.with_row(Row("Verdict (a difference below 2 % is grey: repeat both runs before you believe it)"))
    first_steps = "Mean over all steps, the slow first ones included: compare runs that are about equally long."
    for title, of, unit, steps, says in (
        ("Step time", STEP, SECONDS, BETTER_BELOW, first_steps),
        ("Overlap", OVERLAP, RATIO, BETTER_ABOVE, "Share of the communication that ran under compute."),
        ("Exposed communication", EXPOSED, RATIO, BETTER_BELOW, "Share of the step with nothing but communication."),
        ("Bytes of a step", SENT, BYTES, BETTER_BELOW, "Tensors that one rank hands to collectives. Equal unless you "
         "changed what is sent: then step times compare the same work."),
    ):  # fmt: skip
        made.with_panel(number(f"{title}: this run", says, of["this run"], unit, width=4))
        made.with_panel(number(f"{title}: baseline", says, of["baseline"], unit, width=4))
        made.with_panel(number(f"{title}: change", f"{says} Relative to the baseline.", change(of), RATIO, steps,
                               width=4))  # fmt: skip


def _parts(made: Dashboard) -> None:
    made.with_row(Row("Where the difference is"))
    for title, metric, label, says in (
        ("Breakdown of a step", q.BREAKDOWN, "ddptrace_part", "The bar that shrank is where the time was won."),
        ("Phases of a step", q.PHASE, "ddptrace_phase", "Waits for communication are inside backward."),
    ):
        pairs = [Query(q.whole_per_step(metric, by=(label,), ranks=run), f"{{{{{label}}}}}, {name}")
                 for name, run in BOTH.items()]  # fmt: skip
        made.with_panel(bars(title, says, SECONDS, *pairs))


def _details(made: Dashboard) -> None:
    made.with_row(Row("Buckets and ranks"))
    exposed = {name: q.whole_per_step(q.BUCKET_EXPOSED, by=q.BY_BUCKET, ranks=run) for name, run in BOTH.items()}
    took = {name: q.whole_mean(q.BUCKET, by=q.BY_BUCKET, ranks=run) for name, run in BOTH.items()}
    made.with_panel(cells(
        "Exposed by bucket",
        "Per step. Where bucket sizes were changed, buckets of one number are not the same gradients: compare sums.",
        Column("exposed, this run", exposed["this run"], SECONDS),
        Column("exposed, baseline", exposed["baseline"], SECONDS),
        Column("more exposed", f"({exposed['this run']}) - ({exposed['baseline']})", SECONDS),
        Column("execution, this run", took["this run"], SECONDS),
        Column("execution, baseline", took["baseline"], SECONDS),
        sort_by="exposed, this run", width=14,
    ))  # fmt: skip
    late = [
        Query(q.lateness(q.whole_per_step(q.COMM, by=q.BY_RANK, ranks=run), STEP[name]),
              f"rank {{{{ddptrace_rank}}}}, {name}")
        for name, run in BOTH.items()
    ]  # fmt: skip
    made.with_panel(bars("Lateness by rank", "What each rank communicates less than the one that does most, as a share "
                         "of the step: a late rank waits for nobody.", RATIO, *late, width=10))  # fmt: skip


def _over_time(made: Dashboard) -> None:
    made.with_row(Row("Over time: put what the first panel says into the field on top, and both runs begin together"))
    began = {name: f"min(min_over_time({q.series(q.RECORD_TIME, run)}[$__range]))" for name, run in BOTH.items()}
    says = (
        "How much later this run was first heard of than the baseline. Negative: choose the runs the other way round."
    )
    apart = f"{began['this run']} - {began['baseline']}"
    made.with_panel(number("Draw the baseline later by", says, apart, "suffix: s", width=4))
    for title, unit, of in (
        ("Step time", SECONDS, {name: q.mean(q.STEP, ranks=run) for name, run in BOTH.items()}),
        ("Overlap", RATIO, {name: q.share(q.COMM, q.HIDDEN, ranks=run) for name, run in BOTH.items()}),
    ):
        later = of["baseline"].replace("[$window]", "[$window] offset $shift")
        made.with_panel(lines(title, "Over the last moments of each run.", unit, Query(of["this run"], "this run"),
                              Query(later, "baseline"), width=10))  # fmt: skip


def _facts(made: Dashboard) -> None:
    made.with_row(Row("Do the two compare at all?"))
    facts = ("ddptrace_run_id", "ddptrace_world_size", "ddptrace_backend", "ddptrace_torch_version")
    either = 'ddptrace_run_id=~"$run|$baseline"'
    info = f"count by ({', '.join(facts)}) (last_over_time({q.series('ddptrace_run_info', either)}[$__range]))"
    steps = f"max by (ddptrace_run_id) (last_over_time({q.series(f'{q.STEP}_count', either)}[$__range]))"
    says = "Different world sizes, backends or versions of torch: then it is not your change alone that you see."
    made.with_panel(cells("Both runs", says, Column("ranks", info), Column("steps", steps, COUNT)))
