"""What find_unused_parameters=True costs, where all parameters are used and where each rank leaves a layer out.

off    forward            | backward: buckets made anew after the first step, in the order of gradients
on     forward, walk      | backward: buckets as guessed at the beginning ... , bitmap of used parameters
               the host follows the graph                                       one more all-reduce, waited for where
               from the outputs to the leaves                                   something is unused
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ddptrace.bench.cells import COMM_HEADS, comm_cells, interval_head, spread_line
from ddptrace.bench.setup import merged, setup_of
from ddptrace.bench.timing import Repeats, interleaved, ratio, spread
from ddptrace.bench.unused.words import Case, words
from ddptrace.bench.workloads import nbytes, workload
from ddptrace.render.sheet import Chart, Grid, Sheet
from ddptrace.render.words import NOT_MEASURED, counted, duration, millis, size

if TYPE_CHECKING:
    from ddptrace.bench.job import Job

OFF, ON, LEFT_OUT = "off", "on", "on, a layer left out"
REDUCERS: Final = ("ddp", "bucketed")


@dataclass(frozen=True, slots=True)
class Options:
    """`cap_mb`: of the buckets of both reducers, in MiB."""

    ranks: tuple[int, ...] = (2,)
    backend: str | None = None
    workload: str = "gpt"
    cap_mb: float = 4
    repeats: Repeats = field(default_factory=Repeats)

    def __post_init__(self) -> None:
        workload(self.workload)


def measure(job: Job, options: Options) -> dict[str, Any]:
    """Times by reducer, case and round, what a traced run of each says, and a stopwatch around the walk. Collective."""
    from ddptrace.bench import traced
    from ddptrace.bench.unused.facts import facts
    from ddptrace.bench.unused.model import Leaving

    work = workload(options.workload)
    models = {
        (reducer, find): Leaving(job, work, reducer, options.cap_mb, find=find)
        for reducer in REDUCERS
        for find in (False, True)
    }
    steps: dict[str, Callable[[], None]] = {}
    for reducer in REDUCERS:
        off, on = models[reducer, False], models[reducer, True]
        ways = ((OFF, off.step), (ON, on.step), (LEFT_OUT, on.step_without_one))
        steps |= {f"{reducer}: {case}": step for case, step in ways}
    times = interleaved(job, steps, options.repeats)
    results = traced.analyzed(job, steps, _run)
    walks = {reducer: _walk(models[reducer, False], models[reducer, True]) for reducer in REDUCERS}
    one = models["ddp", False].trainee.model
    count = len(list(one.parameters()))
    return {
        "setup": setup_of(job), "nbytes": nbytes(one), "parameters": count, "layers": len(models["ddp", False].layers),
        "ranks": job.ranks, "times_ns": times, "walks_ns": walks, "traced": traced.truths(results),
        "facts": {name: asdict(facts(result, count)) for name, result in results.items()},
    }  # fmt: skip


def _walk(off: Any, on: Any) -> int:
    """What the walk adds: stock DDP makes ready without it too, ours does nothing then. Collective."""
    without, found = off.walk_ns(), on.walk_ns()
    return int(found - without if hasattr(off.trainee.model, "find_unused_parameters") else found)


def _run(name: str) -> str:
    return name.replace(": ", "-").replace(", ", "-").replace(" ", "-")


def sheet(options: Options, measured: list[dict[str, Any]]) -> Sheet:
    """Sentences, a table and a chart for each job."""
    one = measured[0]
    title = f"find_unused_parameters: {options.workload}, {size(one['nbytes'])} in {one['parameters']} parameters"
    said, grids, charts = list[str](), list[Grid](), list[Chart]()
    for one in measured:
        cases, of_ranks = _cases(one), counted(one["ranks"], "rank")
        said += words(cases, one["ranks"], one["layers"])
        grids.append(Grid(f"Cases, {of_ranks}", _heads(cases), tuple(map(_row, cases)), NOTE))
        charts.append(_chart(cases, of_ranks))
    setup = (*merged(measured), ("buckets", f"{options.cap_mb:g} MiB"))
    return Sheet("unused", title, setup, tuple(said), tuple(grids), tuple(charts))


def _cases(one: dict[str, Any]) -> list[Case]:
    times = one["times_ns"]
    return [
        Case(
            reducer, case, spread(times[f"{reducer}: {case}"]),
            ratio(times[f"{reducer}: {case}"], times[f"{reducer}: {OFF}"]), one["traced"][f"{reducer}: {case}"],
            one["facts"][f"{reducer}: {case}"], None if case == OFF else one["walks_ns"][reducer],
        )
        for reducer in REDUCERS
        for case in (OFF, ON, LEFT_OUT)
    ]  # fmt: skip


def _heads(cases: list[Case]) -> tuple[str, ...]:
    interval = interval_head(case.ratio for case in cases)
    measured = ("step ms", "ratio to off", interval, "walk", "bitmap", "buckets", *COMM_HEADS)
    return "reducer", "find_unused_parameters", *measured


NOTE: Final = (
    "step: median over the rounds, untraced; ratio: of medians within a round. walk: of the host through the graph, by "
    "a stopwatch of its own, the best of several. bitmap: its all-reduce in a traced step, from begin to end. buckets, "
    "comm, hidden and exposed: of the typical step of a traced run."
)


def _row(case: Case) -> tuple[str, ...]:
    against = ("1.00", NOT_MEASURED) if case.name == OFF else (f"{case.ratio.median:.3f}", case.interval)
    return (
        case.reducer, case.name, millis(case.time.median), *against, duration(case.walk_ns),
        duration(case.facts["bitmap_ns"]), str(len(case.facts["buckets"])), *comm_cells(case.truth),
    )  # fmt: skip


def _chart(cases: list[Case], of_ranks: str) -> Chart:
    lines = tuple(
        spread_line(
            reducer, (ON, LEFT_OUT), [case.ratio for case in cases if case.reducer == reducer and case.name != OFF]
        )
        for reducer in REDUCERS
    )
    return Chart(f"Step time against off, {of_ranks}", "find_unused_parameters", "ratio", lines, "bars")
