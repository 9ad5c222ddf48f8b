"""Communication hooks that compress: bytes that a step sends, its time against no hook, and the error they bring in.

A hook saves time only where the link is slower than the arithmetic that packs and unpacks; what it leaves out of the
gradients is the price. So all three stand beside each other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ddptrace.bench.hooks.words import Row, words
from ddptrace.bench.timing import Repeats, interleaved, ratio, spread
from ddptrace.bench.workloads import nbytes, workload
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Chart, Grid, Line, Sheet
from ddptrace.render.words import NOT_MEASURED, counted, millis, percent, size

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
        unknown = [name for name in self.hooks if name not in NAMES]
        if unknown:
            raise DdptraceError(f"no hook is called {unknown[0]!r}; there are: {', '.join(NAMES)}")


def measure(job: Job, options: Options) -> dict[str, Any]:
    """Times by hook and round, what a traced run of each says, and the error of the gradients. Collective."""
    from ddptrace.bench import traced
    from ddptrace.bench.hooks.kinds import coarse_ratio, hooked, needs_one_bucket, relative_error
    from ddptrace.bench.sent import sent
    from ddptrace.bench.setup import setup_of

    in_one = needs_one_bucket(options.reducer, job.backend) and "PowerSGD" in options.hooks
    names = dict.fromkeys((NONE, *([IN_ONE] if in_one else []), *options.hooks))
    made = {name: hooked(job, name, options.workload, options.reducer, options.cap_mb) for name in names}
    trainees = {name: one.trainee for name, one in made.items() if one.trainee is not None}
    steps = {name: trainee.step for name, trainee in trainees.items()}
    times = interleaved(job, steps, options.repeats)
    true = traced.of_each(job, {_run(name): step for name, step in steps.items()})
    bytes_sent = {name: sent(job.folder / "runs" / _run(name)) for name in steps} if job.rank == 0 else {}
    return {
        "setup": setup_of(job), "nbytes": nbytes(trainees[NONE].model), "ranks": job.ranks, "times_ns": times,
        "traced": {name: true.get(_run(name)) for name in steps}, "notes": {n: one.note for n, one in made.items()},
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
        grids.append(Grid(f"Hooks, {of_ranks}", HEADS, tuple(map(_cells, rows)), NOTE))
        charts.append(_chart(rows, of_ranks))
    setup = (*measured[0]["setup"].items(), ("buckets", f"{options.cap_mb:g} MiB"))
    return Sheet("hooks", title, setup, tuple(said), tuple(grids), tuple(charts))


def _rows(one: dict[str, Any]) -> list[Row]:
    times, none = one["times_ns"], one["times_ns"][NONE]
    return [
        Row(name, note, spread(times[name]), ratio(times[name], none), one["sent"][name] or {}, one["traced"][name],
            one["errors"][name])
        if name in times else Row(name, note)
        for name, note in one["notes"].items()
    ]  # fmt: skip


HEADS: Final = (
    "hook", "sent a step", "step ms", "ratio to none", "95 % of the median", "error", "comm ms", "hidden ms",
    "exposed ms", "hidden", "note",
)  # fmt: skip
NOTE: Final = (
    "sent: by each rank in a traced step, as a ring sends it, whatever the backend does. step: median over the rounds, "
    "untraced; ratio: of medians within a round. error: of the mean gradient, ‖hooked − exact‖ ÷ ‖exact‖ in "
    "float64, in one backward after all timing. PowerSGD, of rank 4, sends what it left out in a later step: its error "
    "also holds what it catches up on. comm, hidden and exposed: the typical step of a traced run."
)


def _cells(row: Row) -> tuple[str, ...]:
    if row.time is None or row.ratio is None or row.truth is None or row.error is None:
        return (row.name, *[NOT_MEASURED] * 9, row.note)
    parts = (millis(row.truth[part]) for part in ("comm_ns", "hidden_ns", "exposed_ns"))
    against = ("1.00", NOT_MEASURED) if row.name == NONE else (f"{row.ratio.median:.2f}", row.interval)
    return (
        row.name, size(row.nbytes), millis(row.time.median), *against, f"{row.error:.1e}", *parts,
        percent(row.truth["overlap_ratio"]), row.note,
    )  # fmt: skip


def _chart(rows: list[Row], of_ranks: str) -> Chart:
    found = [(row.name, row.ratio) for row in rows if row.ratio is not None]
    names = tuple(name for name, _ in found)
    bars = Line("ratio", names, *(tuple(getattr(one, part) for _, one in found) for part in ("median", "low", "high")))
    return Chart(f"Step time against no hook, {of_ranks}", "", "ratio", (bars,), "bars", caption="1 is as long.")
