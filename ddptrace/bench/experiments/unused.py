"""What find_unused_parameters=True costs, if all parameters are used and if each rank leaves a layer out.

off    forward            | backward: buckets rebuilt after the first step, in the order of gradients
on     forward, walk      | backward: buckets as guessed at the beginning ... , bitmap of used parameters
               the host follows the graph                                       one more all-reduce, waited for if
               from the outputs to the leaves                                   something is unused

Each rank leaves out another layer.
"""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddptrace.analysis.result import Result
from ddptrace.bench import strategies, traced
from ddptrace.bench.experiment import Experiment, Measured, Section, TimedOptions, each_job, merged_setup
from ddptrace.bench.job import Job, setup_of
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
from ddptrace.bench.workloads import Trainee, Workload, nbytes, workload
from ddptrace.errors import DdptraceError
from ddptrace.reducer.gradients import parameters_reached
from ddptrace.render.sheet import Chart, Grid
from ddptrace.units import NOT_MEASURED, counted, duration, millis, percent, size

OFF, ON, LEFT_OUT = "off", "on", "on, a layer left out"
REDUCERS: Final = ("ddp", "bucketed")

WALKS: Final = 20
ENTRY_NBYTES: Final = 4
"""Bytes of an entry of the bitmap: both reducers send an int32 for each parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`cap_mb`: of the buckets of both reducers, in MiB."""

    workload: str = "gpt"
    cap_mb: float = 4

    def __post_init__(self) -> None:
        workload(self.workload)


def measure(job: Job, options: Options) -> Measured:
    """Time each case of both reducers, trace a run of each, and time the walk. Collective."""
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
    model = models["ddp", False].trainee.model
    count = len(list(model.parameters()))
    return {
        "setup": setup_of(job),
        "nbytes": nbytes(model),
        "parameters": count,
        "layers": len(models["ddp", False].layers),
        "ranks": job.ranks,
        "times_ns": times,
        "walks_ns": walks,
        "traced": traced.typical_steps(results),
        "facts": {name: asdict(facts(result, count)) for name, result in results.items()},
    }


def _walk(off: Leaving, on: Leaving) -> int:
    """Return the ns that the walk adds. Stock DDP prepares for backward without it too; ours does not. Collective."""
    without, found = off.walk_ns(), on.walk_ns()
    return int(found - without if hasattr(off.trainee.model, "find_unused_parameters") else found)


def _run(name: str) -> str:
    return name.replace(": ", "-").replace(", ", "-").replace(" ", "-")


def title(options: Options, jobs: Sequence[Measured]) -> str:
    gradients, parameters = size(jobs[0]["nbytes"]), jobs[0]["parameters"]
    return f"find_unused_parameters: {options.workload}, {gradients} in {parameters} parameters"


def setup(options: Options, jobs: Sequence[Measured]) -> Sequence[tuple[str, str]]:
    return (*merged_setup(options, jobs), ("buckets", f"{options.cap_mb:g} MiB"))


@dataclass(frozen=True, slots=True)
class Case:
    """One reducer with the setting off, on, or on with a layer left out. `ratio`: of step times, to off. `typical`:
    `TypicalStep` as JSON. `facts`: `Facts` as JSON. `walk_ns`: of the host through the graph; None if off."""

    reducer: str
    name: str
    time: Spread
    ratio: Spread
    typical: Mapping[str, Any]
    facts: Mapping[str, Any]
    walk_ns: int | None

    @property
    def interval(self) -> str:
        return ratio_interval(self.ratio)


def section(options: Options, job: Measured) -> Section:
    cases, of_ranks = _cases(job), counted(job["ranks"], "rank")
    grid = Grid(f"Cases, {of_ranks}", _heads(cases), tuple(map(_row, cases)), NOTE)
    return Section(words(cases, job["ranks"], job["layers"]), (grid,), (_chart(cases, of_ranks),))


def _cases(job: Measured) -> list[Case]:
    times = job["times_ns"]
    return [
        Case(
            reducer,
            case,
            spread(times[f"{reducer}: {case}"]),
            ratio(times[f"{reducer}: {case}"], times[f"{reducer}: {OFF}"]),
            job["traced"][f"{reducer}: {case}"],
            job["facts"][f"{reducer}: {case}"],
            None if case == OFF else job["walks_ns"][reducer],
        )
        for reducer in REDUCERS
        for case in (OFF, ON, LEFT_OUT)
    ]


def _heads(cases: list[Case]) -> tuple[str, ...]:
    interval = interval_head(case.ratio for case in cases)
    measured = ("step ms", "ratio to off", interval, "walk", "bitmap", "buckets", *COMM_HEADS)
    return "reducer", "find_unused_parameters", *measured


NOTE: Final = (
    "step: median over the rounds, untraced; ratio: of medians within a round. walk: of the host through the graph, "
    "timed separately, the best of several. bitmap: its all-reduce in a traced step, from begin to end. buckets, "
    "comm, hidden and exposed: of the typical step of a traced run."
)


def _row(case: Case) -> tuple[str, ...]:
    against = ("1.00", NOT_MEASURED) if case.name == OFF else (f"{case.ratio.median:.3f}", case.interval)
    return (
        case.reducer,
        case.name,
        millis(case.time.median),
        *against,
        duration(case.walk_ns),
        duration(case.facts["bitmap_ns"]),
        str(len(case.facts["buckets"])),
        *comm_cells(case.typical),
    )


def _chart(cases: list[Case], of_ranks: str) -> Chart:
    lines = tuple(
        spread_line(
            reducer, (ON, LEFT_OUT), [case.ratio for case in cases if case.reducer == reducer and case.name != OFF]
        )
        for reducer in REDUCERS
    )
    return Chart(f"Step time against off, {of_ranks}", "find_unused_parameters", "ratio", lines, "bars")


def words(cases: Sequence[Case], ranks: int, layers: int) -> list[str]:
    """Return the sentences. `cases`: off, on and left out, of each reducer in turn."""
    sentences = []
    for off, on, left_out in zip(cases[::3], cases[1::3], cases[2::3], strict=True):
        sentences.append(
            f"{on.reducer} with {counted(ranks, 'rank')}: find_unused_parameters makes a step {on.ratio.median:.3f} "
            f"times as long ({on.interval}{_doubt(on.ratio)}) if all parameters are used, and "
            f"{left_out.ratio.median:.3f} times ({left_out.interval}{_doubt(left_out.ratio)}) if each rank "
            f"leaves out one of {layers} layers at random, which also saves that layer's computation."
        )
        sentences.append(_made_of(off, on, left_out))
    return sentences


def _doubt(ratio: Spread) -> str:
    found = doubt(ratio)
    return f", {found}" if found else ""


def _made_of(off: Case, on: Case, left_out: Case) -> str:
    walk = on.walk_ns or 0
    share = percent(max(0, walk) / off.time.median)
    return (
        f"{on.reducer} adds the host's walk through the graph, {duration(walk)}, {share} of a step; "
        f"{_bitmap(on, left_out)}; {_buckets(off, on)}."
    )


def _bitmap(on: Case, left_out: Case) -> str:
    used, unused = on.facts["bitmap_ns"], left_out.facts["bitmap_ns"]
    if used is None or unused is None:
        return "the traced steps do not show the bitmap's all-reduce"
    return f"the bitmap's all-reduce takes {duration(used)}, and {duration(unused)} if a layer is left out"


def _buckets(off: Case, on: Case) -> str:
    if off.facts["buckets"] == on.facts["buckets"]:
        return "buckets are never rebuilt, which makes no difference here: they are the same"
    hidden = (percent(case.typical["overlap_ratio"]) for case in (on, off))
    counts = (len(case.facts["buckets"]) for case in (on, off))
    return (
        "buckets are never rebuilt in the order of gradients: {} instead of {} in a step, and {} of communication is "
        "hidden instead of {}"
    ).format(*counts, *hidden)


EXPERIMENT: Final = Experiment("unused", Options, measure, title, each_job(section), setup)


class Leaving:
    """A model in training that leaves out `left`: the number of a layer, or None."""

    def __init__(self, job: Job, work: Workload, reducer: str, cap_mb: float, *, find: bool) -> None:
        self.trainee = Trainee(job, work, strategies.REDUCERS[reducer](cap_mb, find_unused_parameters=find))
        module: Any = self.trainee.model.module
        self.layers = equal_layers(module)
        if not self.layers:
            raise DdptraceError(f"no layer of {work.name} can be left out, since its layers differ: measure gpt or mlp")
        self.left: int | None = None
        self._chance = random.Random(job.rank)
        for number, layer in enumerate(self.layers):
            layer.forward = functools.partial(self._forward, number, layer.forward)

    def step(self) -> None:
        """Update once with all layers."""
        self.left = None
        self.trainee.step()

    def step_without_one(self) -> None:
        """Update once without a layer, which each rank draws at random."""
        self.left = self._chance.randrange(len(self.layers))
        self.trainee.step()

    def walk_ns(self) -> int:
        """Return the ns that the host needs after forward to prepare for backward, with the walk through the graph if
        it is on. The best of several. Collective."""
        self.left = None
        model, loss = self.trainee.model, self.trainee.model(*self.trainee.batch)
        prepare = _preparation(model, loss)
        cost = min(_ns(prepare) for _ in range(WALKS))
        loss.backward()
        self.trainee.optimizer.zero_grad()
        return cost

    def _forward(self, number: int, forward: Callable[..., Any], inputs: Any, *more: Any, **named: Any) -> Any:
        return inputs if number == self.left else forward(inputs, *more, **named)


def equal_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of the first list of two or more with equal parameters. Each may be left out, since its input
    has the shape of its output."""
    for part in model.modules():
        layers = list(part.children()) if isinstance(part, nn.ModuleList | nn.Sequential) else []
        shapes = {tuple(parameter.shape for parameter in layer.parameters()) for layer in layers}
        if len(layers) > 1 and len(shapes) == 1 and shapes != {()}:
            return layers
    return []


def _preparation(model: nn.Module, loss: Tensor) -> Callable[[], object]:
    """Return what a wrapper's forward does last. Repeating it does no harm."""
    if isinstance(model, DistributedDataParallel):
        looked_at = [loss] if model.find_unused_parameters else []
        return lambda: model.reducer.prepare_for_backward(looked_at)
    return lambda: parameters_reached(loss)


def _ns(call: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin


@dataclass(frozen=True, slots=True)
class Facts:
    """What a traced run shows. `bitmaps`: number of all-reduces of a bitmap in the profiled steps of all ranks.
    `bitmap_ns`: mean execution of one; None if none was seen. `buckets`: the parameters of each on rank 0, in the order
    of sending."""

    bitmaps: int
    bitmap_ns: float | None
    buckets: tuple[tuple[str, ...], ...]


def facts(result: Result, parameters: int) -> Facts:
    """Return the facts of a traced run. `parameters`: number of the model's."""
    profiled = {(row.rank, row.step) for row in result.steps if row.profiled}
    bitmaps = [
        row
        for row in result.collectives
        if row.bucket is None
        and not row.part
        and (row.rank, row.step) in profiled
        and row.nbytes == ENTRY_NBYTES * parameters
        and "int" in row.dtype
    ]
    times = [row.comm_ns for row in bitmaps if row.comm_ns is not None]
    buckets = {row.index: row.parameters for row in result.buckets if row.rank == 0}
    ordered = tuple(names for _, names in sorted(buckets.items()))
    return Facts(len(bitmaps), statistics.fmean(times) if times else None, ordered)
