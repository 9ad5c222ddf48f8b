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

from ddptrace.bench.timing import Repeats, interleaved, ratio, spread
from ddptrace.bench.unused.words import Case, words
from ddptrace.bench.workloads import nbytes, workload
from ddptrace.render.sheet import Chart, Grid, Line, Sheet
from ddptrace.render.words import NOT_MEASURED, counted, duration, millis, percent, size

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
    from ddptrace.bench.setup import setup_of
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
    true = traced.of_each(job, {_run(name): step for name, step in steps.items()})
    walks = {reducer: _walk(models[reducer, False], models[reducer, True]) for reducer in REDUCERS}
    one = models["ddp", False].trainee.model
    count = len(list(one.parameters()))
    seen = {name: asdict(facts(job.folder / "runs" / _run(name), count)) for name in steps} if job.rank == 0 else {}
    return {
        "setup": setup_of(job), "nbytes": nbytes(one), "parameters": count, "layers": len(models["ddp", False].layers),
        "ranks": job.ranks, "times_ns": times, "traced": {name: true.get(_run(name)) for name in steps},
        "walks_ns": walks, "facts": seen,
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
        grids.append(Grid(f"Cases, {of_ranks}", HEADS, tuple(map(_row, cases)), NOTE))
        charts.append(_chart(cases, of_ranks))
    setup = (*measured[0]["setup"].items(), ("buckets", f"{options.cap_mb:g} MiB"))
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


HEADS: Final = (
    "reducer", "find_unused_parameters", "step ms", "ratio to off", "95 % of the median", "walk", "bitmap",
    "buckets", "comm ms", "hidden ms", "exposed ms", "hidden",
)  # fmt: skip
NOTE: Final = (
    "step: median over the rounds, untraced; ratio: of medians within a round. walk: of the host through the graph, by "
    "a stopwatch of its own, the best of several. bitmap: its all-reduce in a traced step, from begin to end. buckets, "
    "comm, hidden and exposed: of the typical step of a traced run."
)


def _row(case: Case) -> tuple[str, ...]:
    against = ("1.00", NOT_MEASURED) if case.name == OFF else (f"{case.ratio.median:.3f}", case.interval)
    parts = (millis(case.truth[part]) for part in ("comm_ns", "hidden_ns", "exposed_ns"))
    return (
        case.reducer, case.name, millis(case.time.median), *against, duration(case.walk_ns),
        duration(case.facts["bitmap_ns"]), str(len(case.facts["buckets"])), *parts,
        percent(case.truth["overlap_ratio"]),
    )  # fmt: skip


def _chart(cases: list[Case], of_ranks: str) -> Chart:
    lines = tuple(
        Line(
            reducer, (ON, LEFT_OUT),
            *(tuple(getattr(case.ratio, part) for case in cases if case.reducer == reducer and case.name != OFF)
              for part in ("median", "low", "high")),
        )
        for reducer in REDUCERS
    )  # fmt: skip
    return Chart(f"Step time against off, {of_ranks}", "find_unused_parameters", "ratio", lines, "bars")
