"""Communication hooks that compress: bytes that a step sends, its time against no hook, and the error they bring in.

A hook saves time only where the link is slower than the arithmetic that packs and unpacks; what it leaves out of the
gradients is the price. So all three stand beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ddptrace.bench.asked import known
from ddptrace.bench.cells import COMM_HEADS, comm_cells, interval_head, spread_line
from ddptrace.bench.hooks.words import Row, words
from ddptrace.bench.setup import merged, setup_of
from ddptrace.bench.timing import Repeats, interleaved, ratio, spread
from ddptrace.bench.workloads import nbytes, workload
from ddptrace.render.sheet import Chart, Grid, Sheet
from ddptrace.render.words import NOT_MEASURED, counted, millis, size

if TYPE_CHECKING:
    from ddptrace.bench.job import Job

NONE: Final = "none"
IN_ONE: Final = "none, one bucket"
NAMES: Final = ("fp16", "bf16", "PowerSGD", "quantization")


@dataclass(frozen=True, slots=True)
class Options:
    """`hooks`: some of NAMES; no hook is always measured. `cap_mb`: of the buckets, in MiB."""

    ranks: tuple[int, ...] = (2,)
    backend: str | None = None
    workload: str = "gpt"
    reducer: str = "ddp"
    hooks: tuple[str, ...] = NAMES
    cap_mb: float = 4
    repeats: Repeats = field(default_factory=Repeats)

    def __post_init__(self) -> None:
        workload(self.workload)
        known("hook", self.hooks, NAMES)


def measure(job: Job, options: Options) -> dict[str, Any]:
    """Times by hook and round, what a traced run of each says, and the error of the gradients. Collective."""
    from ddptrace.bench import traced
    from ddptrace.bench.hooks.kinds import coarse_ratio, hooked, needs_one_bucket, relative_error
    from ddptrace.bench.sent import sent

    in_one = needs_one_bucket(options.reducer, job.backend) and "PowerSGD" in options.hooks
    names = dict.fromkeys((NONE, *([IN_ONE] if in_one else []), *options.hooks))
    made = {name: hooked(job, name, options.workload, options.reducer, options.cap_mb) for name in names}
    trainees = {name: one.trainee for name, one in made.items() if one.trainee is not None}
    steps = {name: trainee.step for name, trainee in trainees.items()}
    times = interleaved(job, steps, options.repeats)
    results = traced.analyzed(job, steps, _run)
    bytes_sent = {name: sent(result) for name, result in results.items()}
    return {
        "setup": setup_of(job), "nbytes": nbytes(trainees[NONE].model), "ranks": job.ranks, "times_ns": times,
        "traced": traced.truths(results), "notes": {name: one.note for name, one in made.items()},
        "sent": {name: one and asdict(one) for name, one in bytes_sent.items()},
        "coarse_ratio": coarse_ratio(job, trainees[NONE]),
        "errors": {name: relative_error(job, trainee) for name, trainee in trainees.items()},
    }  # fmt: skip


def _run(name: str) -> str:
    return "hook-" + name.replace(", ", "-").replace(" ", "-")


def sheet(options: Options, measured: list[dict[str, Any]]) -> Sheet:
    """Sentences, a table and a chart for each job."""
    title = f"Communication hooks: {options.workload}, {options.reducer}, {size(measured[0]['nbytes'])} of gradients"
    said, grids, charts = list[str](), list[Grid](), list[Chart]()
    for one in measured:
        rows, of_ranks = _rows(one), counted(one["ranks"], "rank")
        said += words(rows, one["ranks"], one["coarse_ratio"])
        grids.append(Grid(f"Hooks, {of_ranks}", _heads(rows), tuple(map(_cells, rows)), NOTE))
        charts.append(_chart(rows, of_ranks))
    setup = (*merged(measured), ("buckets", f"{options.cap_mb:g} MiB"))
    return Sheet("hooks", title, setup, tuple(said), tuple(grids), tuple(charts))


def _rows(one: dict[str, Any]) -> list[Row]:
    times = one["times_ns"]
    return [
        Row(name, note, spread(times[name]), ratio(times[name], times[_beside(name, times)]), _beside(name, times),
            one["sent"][name] or {}, one["traced"][name], one["errors"][name])
        if name in times else Row(name, note)
        for name, note in one["notes"].items()
    ]  # fmt: skip


def _beside(name: str, times: Mapping[str, Any]) -> str:
    """What a hook is compared to: no hook in the same buckets."""
    return IN_ONE if name == "PowerSGD" and IN_ONE in times else NONE


def _heads(rows: list[Row]) -> tuple[str, ...]:
    interval = interval_head(row.ratio for row in rows if row.ratio is not None)
    return "hook", "sent a step", "step ms", "ratio to none", interval, "error", *COMM_HEADS, "note"


NOTE: Final = (
    "sent: by each rank in a traced step, as a ring sends it, whatever the backend does. step: median over the rounds, "
    "untraced; ratio: of medians within a round, to no hook in the same buckets. error: of the mean "
    "gradient, ‖hooked − exact‖ ÷ ‖exact‖ in float64, in one backward after all timing. PowerSGD, of rank 4, sends "
    "what it left out in a later step: its error also holds what it catches up on. comm, hidden and exposed: the "
    "typical step of a traced run."
)


def _cells(row: Row) -> tuple[str, ...]:
    if row.time is None or row.ratio is None or row.truth is None or row.error is None:
        return (row.name, *[NOT_MEASURED] * 9, row.note)
    against = ("1.00", NOT_MEASURED) if row.name == NONE else (f"{row.ratio.median:.2f}", row.interval)
    return (
        row.name, size(row.nbytes), millis(row.time.median), *against, f"{row.error:.1e}", *comm_cells(row.truth),
        row.note,
    )  # fmt: skip


def _chart(rows: list[Row], of_ranks: str) -> Chart:
    found = {row.name: row.ratio for row in rows if row.ratio is not None}
    bars, title = spread_line("ratio", list(found), list(found.values())), f"Step time against no hook, {of_ranks}"
    return Chart(title, "", "ratio", (bars,), "bars", caption="1 is as long as without a hook in the same buckets.")
