"""Communication hooks that compress: which a reducer takes, the bytes that a step sends, its time against no hook, and
the error they add.

A hook saves time only if the link is slower than the arithmetic that packs and unpacks. The price is what it leaves out
of the gradients. So all three stand beside each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddptrace.analysis.result import Result
from ddptrace.bench import traced
from ddptrace.bench.experiment import Experiment, Measured, Section, TimedOptions, each_job, known, merged_setup
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import REDUCERS
from ddptrace.bench.timing import (
    COMM_HEADS,
    Spread,
    comm_cells,
    doubt,
    interleaved,
    interval_head,
    ratio,
    ratio_interval,
    spread,
    spread_line,
)
from ddptrace.bench.workloads import Trainee, nbytes, workload
from ddptrace.errors import DdptraceError
from ddptrace.ops import FACTORS
from ddptrace.render.sheet import Chart, Grid
from ddptrace.units import NOT_MEASURED, counted, millis, percent, size

NAMES: Final = ("fp16", "bf16", "PowerSGD", "quantization")
NONE: Final = "none"
NONE_IN_ONE: Final = "none, one bucket"
POWER_SGD_RANK: Final = 4
WHOLE_MB: Final = 2.0**20
"""A cap that makes one bucket."""
NCCL_ONLY: Final = "torch's hook raises an IndexError on Gloo, whose all-gather returns another list than NCCL's"
HANGS: Final = "in one bucket: with several, stock DDP on Gloo hangs with this hook"

NOTE: Final = (
    "sent: by each rank in a traced step, as a ring sends it, whatever the backend does. step: median over the rounds, "
    "untraced; ratio: of medians within a round, to no hook in the same buckets. error: of the mean "
    "gradient, ‖hooked − exact‖ ÷ ‖exact‖ in float64, in one backward after all timing. PowerSGD, of rank 4, sends "
    "later what it left out: its error includes what it sends late. comm, hidden and exposed: the typical step of a "
    "traced run."
)

Made = tuple[object, Callable[..., Any]] | None
"""State and function of a hook; None for no hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`hooks`: some of NAMES; no hook is always measured. `cap_mb`: of the buckets, in MiB."""

    workload: str = "gpt"
    reducer: str = "ddp"
    hooks: tuple[str, ...] = NAMES
    cap_mb: float = 4

    def __post_init__(self) -> None:
        workload(self.workload)
        known("hook", self.hooks, NAMES)


def measure(job: Job, options: Options) -> Measured:
    """Time each hook, trace a run of each, and measure the error of its gradients. Collective."""
    in_one = _needs_one_bucket(options.reducer, job.backend) and "PowerSGD" in options.hooks
    names = dict.fromkeys((NONE, *([NONE_IN_ONE] if in_one else []), *options.hooks))
    made = {name: hooked(job, name, options.workload, options.reducer, options.cap_mb) for name in names}
    trainees = {name: hook.trainee for name, hook in made.items() if hook.trainee is not None}
    steps = {name: trainee.step for name, trainee in trainees.items()}
    times = interleaved(job, steps, options.repeats)
    results = traced.analyzed(job, steps, _run_name)
    bytes_sent = {name: sent(result) for name, result in results.items()}
    return {
        "setup": setup_of(job),
        "nbytes": nbytes(trainees[NONE].model),
        "ranks": job.ranks,
        "times_ns": times,
        "traced": traced.typical_steps(results),
        "notes": {name: hook.note for name, hook in made.items()},
        "sent": {name: found and asdict(found) for name, found in bytes_sent.items()},
        "coarse_ratio": _coarse_ratio(job, trainees[NONE]),
        "errors": {name: _relative_error(job, trainee) for name, trainee in trainees.items()},
    }


def _run_name(name: str) -> str:
    return "hook-" + name.replace(", ", "-").replace(" ", "-")


def title(options: Options, jobs: Sequence[Measured]) -> str:
    return f"Communication hooks: {options.workload}, {options.reducer}, {size(jobs[0]['nbytes'])} of gradients"


def setup(options: Options, jobs: Sequence[Measured]) -> Sequence[tuple[str, str]]:
    return (*merged_setup(options, jobs), ("buckets", f"{options.cap_mb:g} MiB"))


@dataclass(frozen=True, slots=True)
class Row:
    """A hook as measured; only `name` and `note` if it was refused. `ratio`: of step times, to `beside`, no hook in the
    same buckets. `sent`: `Sent` as JSON. `typical`: `TypicalStep` as JSON. `error`: of the mean gradient, relative."""

    name: str
    note: str
    time: Spread | None = None
    ratio: Spread | None = None
    beside: str = NONE
    sent: Mapping[str, Any] | None = None
    typical: Mapping[str, Any] | None = None
    error: float | None = None

    @property
    def nbytes(self) -> int | None:
        """Bytes that a rank sends in a step."""
        found = (self.sent or {}).get("nbytes")
        return None if found is None else round(found)

    @property
    def interval(self) -> str:
        return "" if self.ratio is None else ratio_interval(self.ratio, 2)


def section(options: Options, job: Measured) -> Section:
    rows, of_ranks = _rows(job), counted(job["ranks"], "rank")
    grid = Grid(f"Hooks, {of_ranks}", _heads(rows), tuple(map(_cells, rows)), NOTE)
    return Section(words(rows, job["ranks"], job["coarse_ratio"]), (grid,), (_chart(rows, of_ranks),))


def _rows(job: Measured) -> list[Row]:
    times = job["times_ns"]
    return [
        Row(
            name,
            note,
            spread(times[name]),
            ratio(times[name], times[_beside(name, times)]),
            _beside(name, times),
            job["sent"][name] or {},
            job["traced"][name],
            job["errors"][name],
        )
        if name in times
        else Row(name, note)
        for name, note in job["notes"].items()
    ]


def _beside(name: str, times: Mapping[str, Any]) -> str:
    """Name what a hook is compared with: no hook in the same buckets."""
    return NONE_IN_ONE if name == "PowerSGD" and NONE_IN_ONE in times else NONE


def _heads(rows: list[Row]) -> tuple[str, ...]:
    interval = interval_head(row.ratio for row in rows if row.ratio is not None)
    return "hook", "sent a step", "step ms", "ratio to none", interval, "error", *COMM_HEADS, "note"


def _cells(row: Row) -> tuple[str, ...]:
    if row.time is None or row.ratio is None or row.typical is None or row.error is None:
        return (row.name, *[NOT_MEASURED] * 9, row.note)
    against = ("1.00", NOT_MEASURED) if row.name == NONE else (f"{row.ratio.median:.2f}", row.interval)
    return (
        row.name,
        size(row.nbytes),
        millis(row.time.median),
        *against,
        f"{row.error:.1e}",
        *comm_cells(row.typical),
        row.note,
    )


def _chart(rows: list[Row], of_ranks: str) -> Chart:
    found = {row.name: row.ratio for row in rows if row.ratio is not None}
    bars, title = spread_line("ratio", list(found), list(found.values())), f"Step time against no hook, {of_ranks}"
    return Chart(title, "", "ratio", (bars,), "bars", caption="1 is as long as without a hook in the same buckets.")


def words(rows: Sequence[Row], ranks: int, coarse_ratio: float) -> list[str]:
    """Return the sentences. `rows`: no hook first. `coarse_ratio`: share of the gradients that fp16 holds with fewer
    digits or none."""
    none, others = rows[0], [row for row in rows[1:] if row.time is not None]
    wait = millis((none.typical or {}).get("exposed_ns"))
    step = millis(none.time.median if none.time else None)
    sentences = [
        f"With {counted(ranks, 'rank')} and no hook a step takes {step} ms, and {wait} ms of a traced step are exposed "
        f"communication; each rank sends {size(none.nbytes)}."
    ]
    sentences += [_hook_words(row, none) for row in others]
    if any(row.name == "fp16" for row in others):
        sentences.append(
            f"{percent(coarse_ratio)} of the mean gradient's elements are below 6.1e-5, where fp16 loses digits, "
            "and all below 6.0e-8. Scaling the loss avoids this error, and bf16 does not have it."
        )
    return sentences + [
        f"{row.name} was not measured: {row.note}" + _stop(row.note) for row in rows if row.time is None
    ]


def _hook_words(row: Row, none: Row) -> str:
    if row.ratio is None or row.error is None:
        return ""
    verdict = doubt(row.ratio) or ("shorter" if row.ratio.high < 1 else "longer")
    bucket = f" ({row.note})" if row.note else ""
    beside = "" if row.beside == none.name else " as without a hook, also in one bucket"
    return (
        f"{row.name}{bucket}: {_bytes_words(row.nbytes, none.nbytes)}, a step {row.ratio.median:.2f} times as "
        f"long{beside} ({row.interval}: {verdict}), and a relative error of the mean gradient of {row.error:.1e}."
    )


def _bytes_words(mine: int | None, all_of_it: int | None) -> str:
    if not mine or not all_of_it:
        return "an unknown number of bytes"
    share = mine / all_of_it
    return f"{size(mine)} a step, " + ("as many" if 0.99 < share < 1.01 else f"{share:.3g} times as many")


def _stop(text: str) -> str:
    return "" if text.endswith(".") else "."


@dataclass(frozen=True, slots=True)
class Hooked:
    """A model in training with a hook. `trainee` is None if the reducer refused the hook, and `note` says why."""

    trainee: Trainee | None
    note: str = ""


def hooked(job: Job, name: str, work: str, reducer: str, cap_mb: float) -> Hooked:
    """Train with this hook; in one bucket where stock DDP on Gloo would hang with several. Collective."""
    if name == "quantization" and job.backend == "gloo":
        return Hooked(None, NCCL_ONLY)
    in_one = name == NONE_IN_ONE or (name == "PowerSGD" and _needs_one_bucket(reducer, job.backend))
    strategy = REDUCERS[reducer](WHOLE_MB if in_one else cap_mb)
    trainee = Trainee(job, workload(work), strategy)
    try:
        register(trainee.model, name)
    except (TypeError, ValueError, DdptraceError) as refusal:  # DDP's own check of a hook raises a TypeError
        return Hooked(None, f"refused: {str(refusal).splitlines()[0]}")
    return Hooked(trainee, HANGS if in_one and name == "PowerSGD" else "")


def _needs_one_bucket(reducer: str, backend: str) -> bool:
    """Gloo runs callbacks on few threads, where several that wait for a collective block each other for good.
    `BucketedDataParallel` then sends one bucket after another; stock DDP does not."""
    return reducer == "ddp" and backend == "gloo"


def register(model: nn.Module, name: str) -> None:
    """Put the hook of this name on a wrapped model."""
    made = HOOKS[name]()
    if made is not None:
        model.register_comm_hook(*made)  # type: ignore[operator] # both wrappers have it


@dataclass(frozen=True, slots=True)
class Sent:
    """What one rank sends in one step: means over the profiled steps. `nbytes`: through its link, as a ring sends them:
    for an all-reduce twice the tensor's bytes, less its own part. None if an op or a size is not known."""

    calls: float
    nbytes: float | None


def sent(result: Result) -> Sent | None:
    """Return what the ranks of a traced run sent; None if no step was profiled."""
    steps = Counter((row.rank, row.step) for row in result.steps if row.profiled)
    calls = [row for row in result.collectives if not row.part and (row.rank, row.step) in steps]
    if not steps:
        return None
    total = 0.0
    for row in calls:
        if row.nbytes is None or not row.group_size or row.op.rstrip("_") not in FACTORS:
            return Sent(len(calls) / len(steps), None)
        total += row.nbytes * FACTORS[row.op.rstrip("_")](row.group_size)
    return Sent(len(calls) / len(steps), total / len(steps))


def _relative_error(job: Job, trainee: Trainee) -> float:
    """Return ‖difference‖ ÷ ‖exact‖ of the gradients after a hooked backward, against the exact mean over the ranks.
    Parameters stay as they are. Collective."""
    exact = _exact_means(job, trainee)
    trainee.model(*trainee.batch).backward()
    found = [parameter.grad.double() for parameter in trainee.model.parameters() if parameter.grad is not None]
    trainee.optimizer.zero_grad()
    off, whole = (
        torch.stack([part.norm() for part in parts]).norm()
        for parts in ([one - other for one, other in zip(found, exact, strict=True)], exact)
    )
    return float(off / whole)


def _coarse_ratio(job: Job, trainee: Trainee) -> float:
    """Return the share of the exact mean gradients' elements that are below fp16's normal numbers but not zero.
    Collective."""
    sizes = torch.cat([mean.flatten() for mean in _exact_means(job, trainee)]).abs()
    return float(((sizes > 0) & (sizes < torch.finfo(torch.float16).tiny)).double().mean())


def _exact_means(job: Job, trainee: Trainee) -> list[Tensor]:
    """Return the ranks' own gradients, averaged in float64."""
    with trainee.model.no_sync():  # type: ignore[operator] # both wrappers have it
        trainee.model(*trainee.batch).backward()
    means = []
    for parameter in trainee.model.parameters():
        if parameter.grad is not None:
            mean = parameter.grad.double()
            dist.all_reduce(mean)
            means.append(mean / job.ranks)
    trainee.optimizer.zero_grad()
    return means


def _power_sgd() -> Made:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    return PowerSGDState(None, POWER_SGD_RANK, start_powerSGD_iter=2), powerSGD_hook


def _default(name: str) -> Callable[[], Made]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return lambda: (None, getattr(default_hooks, name))


def _quantization() -> Made:
    from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_pertensor_hook

    return None, quantization_pertensor_hook


HOOKS: Final[dict[str, Callable[[], Made]]] = {
    NONE: lambda: None,
    NONE_IN_ONE: lambda: None,
    "fp16": _default("fp16_compress_hook"),
    "bf16": _default("bf16_compress_hook"),
    "PowerSGD": _power_sgd,
    "quantization": _quantization,
}


EXPERIMENT: Final = Experiment("hooks", Options, measure, title, each_job(section), setup)
