"""Process groups that take turns: bucket i is reduced by group i modulo their number.

1 group    bucket 0 ────▶ bucket 1 ────▶ bucket 2 ────▶        one after another, if the group has one lane
3 groups   bucket 0 ──────────▶                                together: faster if one alone leaves the link idle,
             bucket 1 ──────────▶                              no faster if the link or the processor is full
               bucket 2 ──────────▶

Li et al. ("PyTorch Distributed", VLDB 2020) found three groups faster than one for BERT over NCCL, where one did not
fill the link. torch has since dropped round-robin groups; `BucketedDataParallel` takes a list of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch.distributed as dist

from ddptrace.analysis.result import Result
from ddptrace.bench import traced
from ddptrace.bench.experiment import Experiment, Measured, Section, TimedOptions, each_job
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import Strategy, bucketed
from ddptrace.bench.timing import (
    COMM_HEADS,
    STEP_CAPTION,
    Spread,
    comm_cells,
    interleaved,
    interval_head,
    ms_interval,
    ratio,
    ratio_interval,
    spread,
    step_lines,
)
from ddptrace.bench.workloads import Trainee, nbytes, workload
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Chart, Grid
from ddptrace.units import NOT_MEASURED, counted, millis, size

REFERENCE: Final = "1"
CONTROL: Final = "1 again"
MORE_AT_ONCE: Final = 1.1
"""Ratio to one group's. A smaller one tells nothing, since a traced run is a single run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`groups`: how many take turns, 1 among them. `cap_mb`: of the buckets, in MiB."""

    workload: str = "mlp"
    groups: tuple[int, ...] = (1, 3, 5)
    cap_mb: float = 1

    def __post_init__(self) -> None:
        workload(self.workload)
        if 1 not in self.groups:
            raise DdptraceError("all numbers of process groups are compared to 1: include it, as in 1,3,5")


def measure(job: Job, options: Options) -> Measured:
    """Time each number of groups, and one group again under a second name, and trace a run of each. Collective."""
    work = workload(options.workload)
    trainees = {name: Trainee(job, work, _in_turn(count, options.cap_mb)) for name, count in counts(options).items()}
    times = interleaved(job, {name: trainee.step for name, trainee in trainees.items()}, options.repeats)
    steps = {str(count): trainees[str(count)].step for count in options.groups}
    results = traced.analyzed(job, steps, lambda count: f"{count}-groups-{job.ranks}-ranks")
    model: Any = trainees[REFERENCE].model
    return {
        "setup": setup_of(job),
        "ranks": job.ranks,
        "nbytes": nbytes(model),
        "times_ns": times,
        "buckets": len(model.reducer.layout.buckets),
        "traced": traced.typical_steps(results),
        "at_once": {count: _at_once(result) for count, result in results.items()},
    }


def counts(options: Options) -> dict[str, int]:
    """Return the number of groups that take turns, by the name of the measurement; the control last."""
    return {str(count): count for count in options.groups} | {CONTROL: 1}


def _in_turn(count: int, cap_mb: float) -> Strategy:
    """Make separate groups for each measurement, so that none shares the default group with anything else."""
    return bucketed(cap_mb, process_group=[dist.new_group() for _ in range(count)])


def _at_once(result: Result) -> float | None:
    """Return how many collectives ran at once: the mean over the time in which any ran. None if none ran."""
    profiled = {(step.rank, step.step): step.comm_ns for step in result.steps if step.profiled and step.comm_ns}
    of_each = [row.comm_ns for row in result.collectives if (row.rank, row.step) in profiled and row.comm_ns]
    return sum(of_each) / sum(profiled.values()) if profiled else None


def title(options: Options, jobs: Sequence[Measured]) -> str:
    first = jobs[0]
    gradients = f"{size(first['nbytes'])} of gradients in {first['buckets']} buckets"
    return f"Process groups in turn: {options.workload}, {gradients}"


@dataclass(frozen=True, slots=True)
class Turn:
    """A number of groups as measured. `ratio`: of step times, to one group's. `typical`, `TypicalStep` as JSON, and
    `at_once`: of a traced run; None for the control, which is not traced."""

    name: str
    groups: int
    time: Spread
    ratio: Spread
    typical: Mapping[str, Any] | None
    at_once: float | None


def section(options: Options, job: Measured) -> Section:
    turns = _turns(options, job)
    grid = Grid(f"Groups, {job['setup']['ranks']}", _heads(turns), tuple(map(_row, turns)), NOTE)
    sentences = words(job["ranks"], job["setup"]["backend"], job["buckets"], turns)
    return Section(sentences, (grid,), (_chart(job, turns),))


def _turns(options: Options, job: Measured) -> list[Turn]:
    """Return a row for each measurement, the control last."""
    times = job["times_ns"]
    return [
        Turn(
            name,
            count,
            spread(times[name]),
            ratio(times[name], times[REFERENCE]),
            job["traced"].get(name),
            job["at_once"].get(name),
        )
        for name, count in counts(options).items()
    ]


def _heads(turns: list[Turn]) -> tuple[str, ...]:
    times, ratios = [turn.time for turn in turns], [turn.ratio for turn in turns]
    of_ratio = interval_head(ratios, "95 % of the ratio", "range of the ratio")
    return "groups", "step ms", interval_head(times), "÷ 1 group", of_ratio, *COMM_HEADS, "at once"


NOTE: Final = (
    f"step: median over the rounds, untraced. ÷ 1 group: of the same round; “{CONTROL}” is one group under a second "
    "name, so its ratio shows the noise. comm, hidden and exposed: the typical step of a traced run; comm is the time "
    "in which at least one collective ran, and at once the mean number that ran then."
)


def _row(turn: Turn) -> tuple[str, ...]:
    ratios = (f"{turn.ratio.median:.3f}", ratio_interval(turn.ratio))
    if turn.name == REFERENCE:
        ratios = ("1", NOT_MEASURED)
    at_once = NOT_MEASURED if turn.at_once is None else f"{turn.at_once:.2f}"
    return turn.name, millis(turn.time.median), ms_interval(turn.time), *ratios, *comm_cells(turn.typical), at_once


def _chart(job: Measured, turns: list[Turn]) -> Chart:
    lines = step_lines([turn.name for turn in turns], [turn.time for turn in turns], [turn.typical for turn in turns])
    title = f"Step time over groups, {job['setup']['ranks']}"
    return Chart(title, "groups", "ms", lines, "bars", caption=STEP_CAPTION)


Comparison = Literal["faster", "slower", "same"]


def verdict(turn: Turn, control: Turn) -> Comparison:
    """Return faster or slower only if the whole interval lies beyond 1 and beyond the control's interval."""
    if turn.ratio.high < min(1, control.ratio.low):
        return "faster"
    return "slower" if turn.ratio.low > max(1, control.ratio.high) else "same"


def words(ranks: int, backend: str, buckets: int, turns: Sequence[Turn]) -> list[str]:
    """Return the sentences. `turns`: the control last."""
    *asked, control = turns
    several = [turn for turn in asked if turn.groups > 1]
    if not several:
        return ["Only 1 group was measured, so there is nothing to compare."]
    verdicts = {turn.name: verdict(turn, control) for turn in several}
    sentences = [f"Between {counted(ranks, 'rank')}, {_found(several, verdicts, control)}."]
    if buckets < max(turn.groups for turn in several):
        sentences.append(f"There are only {counted(buckets, 'bucket')}: groups beyond that number have nothing to do.")
    return [*sentences, *_why(asked, verdicts), _beside_the_paper(backend, set(verdicts.values()))]


def _found(several: Sequence[Turn], verdicts: Mapping[str, Comparison], control: Turn) -> str:
    """State each ratio with its interval."""
    parts = []
    for turn in several:
        interval = f"({ratio_interval(turn.ratio)})"
        outcomes = {"same": ", no difference beyond the noise", "faster": ": faster", "slower": ": slower"}
        parts.append(
            f"with {turn.groups} groups a step takes {turn.ratio.median:.3f} times {interval} as long as with 1"
            + outcomes[verdicts[turn.name]]
        )
    noise = f"the same group measured twice gives {ratio_interval(control.ratio)}"
    return "; ".join([*parts, noise])


def _why(asked: Sequence[Turn], verdicts: Mapping[str, Comparison]) -> list[str]:
    """Explain it by the traced runs: do more collectives run side by side, and is communication over sooner?"""
    single = next(turn for turn in asked if turn.groups == 1)
    most = max(asked, key=lambda turn: turn.groups)
    if single.typical is None or most.typical is None or single.at_once is None or most.at_once is None:
        return []
    before, after = single.typical["comm_ns"], most.typical["comm_ns"]
    observed = (
        f"In the traced steps {single.at_once:.2f} collectives run at once with 1 group and {most.at_once:.2f} with "
        f"{most.groups}, and at least one runs for {millis(before)} ms and {millis(after)} ms of a step"
    )
    if most.at_once < MORE_AT_ONCE * single.at_once:
        return [f"{observed}: more groups do not run more of them side by side here."]
    if after >= before:
        return [f"{observed}: side by side each takes longer, so the link or the processor was full with 1 group."]
    won = verdicts[most.name] == "faster"
    return [f"{observed}: side by side they end sooner{'' if won else ', but the step is not shorter'}."]


def _beside_the_paper(backend: str, verdicts: set[Comparison]) -> str:
    paper = "Li et al. (VLDB 2020) found 3 groups faster than 1 for BERT over NCCL"
    if "faster" in verdicts:
        here = "this measurement, too, has a number of groups that is faster than 1"
    elif "slower" in verdicts:
        here = "this measurement has none that is faster than 1"
    else:
        here = "this measurement shows no difference beyond the noise"
    other = "" if backend == "nccl" else f"; over {backend} it neither confirms nor contradicts that"
    return f"{paper}; {here}{other}. Groups in turn can help only where one alone leaves the link idle."


EXPERIMENT: Final = Experiment("round-robin", Options, measure, title, each_job(section))
