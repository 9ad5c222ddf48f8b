"""Process groups that take turns: bucket i is reduced by group i modulo their number.

1 group    bucket 0 ────▶ bucket 1 ────▶ bucket 2 ────▶        one after another, as far as the group has one lane
3 groups   bucket 0 ──────────▶                                together: won if one alone leaves the link idle,
             bucket 1 ──────────▶                              nothing won if the link or the processor is full
               bucket 2 ──────────▶

Li et al. ("PyTorch Distributed", VLDB 2020) found three groups faster than one for BERT over NCCL, where one did not
fill the link. torch has dropped round-robin groups since; `BucketedDataParallel` takes a list of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ddptrace.bench.cells import (
    COMM_HEADS,
    STEP_CAPTION,
    comm_cells,
    interval_head,
    ms_interval,
    ratio_interval,
    step_lines,
)
from ddptrace.bench.round_robin.words import Turn, words
from ddptrace.bench.setup import merged, setup_of
from ddptrace.bench.timing import Repeats, interleaved, ratio, spread
from ddptrace.bench.workloads import nbytes, workload
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Chart, Grid, Sheet
from ddptrace.render.words import NOT_MEASURED, millis, size

if TYPE_CHECKING:
    from ddptrace.analysis.result import Result
    from ddptrace.bench.job import Job
    from ddptrace.bench.training import Strategy

REFERENCE: Final = "1"
CONTROL: Final = "1 again"


@dataclass(frozen=True, slots=True)
class Options:
    """`groups`: how many take turns, 1 among them. `cap_mb`: of the buckets, in MiB."""

    ranks: tuple[int, ...] = (2,)
    backend: str | None = None
    workload: str = "mlp"
    groups: tuple[int, ...] = (1, 3, 5)
    cap_mb: float = 1
    repeats: Repeats = field(default_factory=Repeats)

    def __post_init__(self) -> None:
        workload(self.workload)
        if 1 not in self.groups:
            raise DdptraceError("numbers of process groups are compared to 1: have it among them, as in 1,3,5")


def measure(job: Job, options: Options) -> dict[str, Any]:
    """Times by number of groups and round, one group under a second name beside them, and what a traced run of each
    says. Collective."""
    from ddptrace.bench import traced
    from ddptrace.bench.training import Trainee

    work = workload(options.workload)
    trainees = {name: Trainee(job, work, _in_turn(count, options.cap_mb)) for name, count in counts(options).items()}
    times = interleaved(job, {name: trainee.step for name, trainee in trainees.items()}, options.repeats)
    steps = {str(count): trainees[str(count)].step for count in options.groups}
    results = traced.analyzed(job, steps, lambda count: f"{count}-groups-{job.ranks}-ranks")
    model: Any = trainees[REFERENCE].model
    return {
        "setup": setup_of(job), "ranks": job.ranks, "nbytes": nbytes(model), "times_ns": times,
        "buckets": len(model.reducer.layout.buckets),
        "traced": traced.truths(results), "at_once": {count: _at_once(result) for count, result in results.items()},
    }  # fmt: skip


def counts(options: Options) -> dict[str, int]:
    """How many groups take turns in what is measured under each name; the control last."""
    return {str(count): count for count in options.groups} | {CONTROL: 1}


def _in_turn(count: int, cap_mb: float) -> Strategy:
    """Every measurement has groups of its own: none shares the default group with what else goes on."""
    import torch.distributed as dist

    from ddptrace.bench.strategies import bucketed

    return bucketed(cap_mb, process_group=[dist.new_group() for _ in range(count)])


def _at_once(result: Result) -> float | None:
    """How many collectives ran at once, mean over the time in which any did; None without one."""
    profiled = {(step.rank, step.step): step.comm_ns for step in result.steps if step.profiled and step.comm_ns}
    of_each = [row.comm_ns for row in result.collectives if (row.rank, row.step) in profiled and row.comm_ns]
    return sum(of_each) / sum(profiled.values()) if profiled else None


def sheet(options: Options, measured: list[dict[str, Any]]) -> Sheet:
    """One table and one chart for each number of ranks."""
    first = measured[0]
    title = f"Process groups in turn: {options.workload}, {size(first['nbytes'])} of gradients"
    title += f" in {first['buckets']} buckets"
    turns = [(job, _turns(options, job)) for job in measured]
    said = [
        sentence
        for job, of_job in turns
        for sentence in words(job["ranks"], job["setup"]["backend"], job["buckets"], of_job)
    ]
    grids = tuple(
        Grid(f"Groups, {job['setup']['ranks']}", _heads(found), tuple(map(_row, found)), NOTE) for job, found in turns
    )
    return Sheet("round-robin", title, merged(measured), tuple(said), grids, tuple(_chart(*turn) for turn in turns))


def _turns(options: Options, job: dict[str, Any]) -> list[Turn]:
    """The control last."""
    times = job["times_ns"]
    return [
        Turn(name, count, spread(times[name]), ratio(times[name], times[REFERENCE]), job["traced"].get(name),
             job["at_once"].get(name))
        for name, count in counts(options).items()
    ]  # fmt: skip


def _heads(turns: list[Turn]) -> tuple[str, ...]:
    times, ratios = [turn.time for turn in turns], [turn.ratio for turn in turns]
    of_ratio = interval_head(ratios, "95 % of the ratio", "range of the ratio")
    return "groups", "step ms", interval_head(times), "÷ 1 group", of_ratio, *COMM_HEADS, "at once"


NOTE: Final = (
    f"step: median over the rounds, untraced. ÷ 1 group: of the same round; “{CONTROL}” is one group under a second "
    "name, so its ratio is what noise alone does. comm, hidden and exposed: the typical step of a traced run; comm is "
    "the time in which at least one collective ran, and at once is how many ran then, in the mean."
)


def _row(turn: Turn) -> tuple[str, ...]:
    ratios = (f"{turn.ratio.median:.3f}", ratio_interval(turn.ratio))
    if turn.name == REFERENCE:
        ratios = ("1", NOT_MEASURED)
    at_once = NOT_MEASURED if turn.at_once is None else f"{turn.at_once:.2f}"
    return turn.name, millis(turn.time.median), ms_interval(turn.time), *ratios, *comm_cells(turn.truth), at_once


def _chart(job: dict[str, Any], turns: list[Turn]) -> Chart:
    lines = step_lines([turn.name for turn in turns], [turn.time for turn in turns], [turn.truth for turn in turns])
    title = f"Step time over groups, {job['setup']['ranks']}"
    return Chart(title, "groups", "ms", lines, "bars", caption=STEP_CAPTION)
