"""What tracing costs a training step, beside other ways to watch it.

Each round runs the same few steps in every mode, in an order that changes from round to round. A round's ratio is the
mode's median step over the untraced one's in the same round. "null control" is untraced too: its ratio is noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Final

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import fully_shard

from benchmarks.overhead_costs import Costs, Rate, costs, from_a_companion, provider_for, sustained
from benchmarks.overhead_receiver import receiver
from ddptrace.bench.experiment import (
    Experiment,
    Measured,
    Repeats,
    Section,
    TimedOptions,
    known,
    merged_setup,
    only_one,
)
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.strategies import Strategy, stock_ddp
from ddptrace.bench.timing import Spread, interleaved, interval_head, ratio, ratio_interval, spread, spread_line
from ddptrace.bench.traced import recording
from ddptrace.bench.workloads import Trainee, workload
from ddptrace.capture.collectives import compiled, tap
from ddptrace.render.sheet import Chart, Grid
from ddptrace.units import counted, millis

OFF: Final = "off"
NULL: Final = "null control"
ON: Final = "always-on"
COUNTER: Final = "CommDebugMode"
HOOK: Final = "comm hook"
CAP_MB: Final = 4
TOLD_RATIO: Final = 0.005
"""Largest deviation of the null control with which the cost of tracing is stated."""
COMPILED: Final = "compiled code"
BY_PYTHON: Final = "Python (`ddptrace compile` makes this cheaper)"
MODES: Final = {
    OFF: "untraced",
    NULL: "untraced again: what differs here is noise",
    ON: "`ddptrace.trace`",
    "profiled": "`ddptrace.trace` in a window of torch.profiler",
    "torch.profiler": "torch.profiler alone, CPU activities",
    COUNTER: "torch's counter of collectives, a dispatch mode",
    HOOK: "DDP with a Python communication hook that only all-reduces",
}
THREAD: Final = "exporting thread"
COMPANION: Final = "companion"
EXPORTING: Final = {
    THREAD: "`ddptrace.trace` with the program's own provider: a thread of the training makes and sends spans",
    COMPANION: "`ddptrace.trace` and `OTEL_*`: a process beside the training makes and sends spans and metrics",
}
"""Modes whose cost shows only if steps go on for some seconds. Ask for them with `--steps 30`."""

DDP, FSDP2 = "ddp", "fsdp2"
STRATEGIES: Final = {DDP: f"stock DDP, {CAP_MB} MiB buckets", FSDP2: "FSDP2, a unit for each layer, and the root"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`modes`: some of MODES and EXPORTING; "off" is always measured. `strategy`: one of STRATEGIES; only DDP takes a
    communication hook."""

    workload: str = "gpt"
    strategy: str = DDP
    modes: tuple[str, ...] = tuple(MODES)
    repeats: Repeats = field(default_factory=lambda: Repeats(rounds=20))

    def __post_init__(self) -> None:
        only_one(self.ranks)
        workload(self.workload)
        known("strategy", (self.strategy,), STRATEGIES)
        known("mode", self.modes, MODES | EXPORTING)


def measure(job: Job, options: Options) -> Measured:
    """Measure what single instruments cost, then time each mode. Collective."""
    single = costs(job)
    hooked = {HOOK} if options.strategy == DDP else set()
    modes = tuple(mode for mode in dict.fromkeys((OFF, *options.modes)) if mode != HOOK or mode in hooked)
    with receiver() if EXPORTING.keys() & set(modes) else nullcontext("") as address:
        around = _around(job, options.repeats, address)
        times = interleaved(job, _steps(job, options, modes), options.repeats, around)
        exported = sustained(job.folder / "runs" / f"{COMPANION}-0", address) if COMPANION in modes else None
    return {
        "setup": setup_of(job),
        "times_ns": times,
        "costs": asdict(single),
        "exported": exported and asdict(exported),
        "compiled": compiled.loaded() is not None,
    }


def _steps(job: Job, options: Options, modes: tuple[str, ...]) -> dict[str, Callable[[], None]]:
    """Return the step of each mode, all with one model, but for the mode that hooks it."""
    wrap = stock_ddp(CAP_MB) if options.strategy == DDP else Strategy(FSDP2, fully_sharded)
    plain = Trainee(job, workload(options.workload), wrap)
    steps = dict.fromkeys(modes, plain.step)
    if HOOK in modes:
        hooked = Trainee(job, workload(options.workload), stock_ddp(CAP_MB))
        hooked.model.register_comm_hook(None, allreduce_hook)  # type: ignore[operator] # a DDP has it
        steps[HOOK] = hooked.step
    if COUNTER in modes:
        steps[COUNTER] = lambda: _counted(plain.step)
    return steps


def fully_sharded(module: nn.Module) -> nn.Module:
    """Shard a model with `fully_shard`: each member of its outermost lists of modules is a unit, the rest the root."""
    for layer in _layers(module):
        fully_shard(layer)
    fully_shard(module)
    return module


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        is_list = isinstance(child, nn.ModuleList | nn.Sequential)
        yield from child.children() if is_list else _layers(child)


def _counted(step: Callable[[], None]) -> None:
    """Enter it for each step: torch's own module hooks fail in the second step inside one."""
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode():
        step()


def _around(job: Job, repeats: Repeats, address: str) -> Callable[[str, int], AbstractContextManager[object]]:
    provider = provider_for(address) if address else None
    window = torch.profiler.schedule(wait=0, warmup=1, active=repeats.warmup + repeats.steps, repeat=1)

    def around(mode: str, round_: int) -> AbstractContextManager[object]:
        run = job.folder / "runs" / f"{mode}-{round_}"
        if mode == ON:
            return recording(run)
        if mode == "profiled":
            return recording(run, window)
        if mode == THREAD:
            return recording(run, tracer_provider=provider)
        if mode == COMPANION:
            return from_a_companion(run, address)
        tap.remove()  # what the last trace left in torch's dispatcher costs time too
        if mode == "torch.profiler":
            return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        return nullcontext()

    return around


def title(options: Options, jobs: Sequence[Measured]) -> str:
    return f"What tracing costs: {options.workload}, {STRATEGIES[options.strategy]}"


def setup(options: Options, jobs: Sequence[Measured]) -> Sequence[tuple[str, str]]:
    (job,) = jobs
    rounds, recorded_by = job["times_ns"][OFF], COMPILED if job["compiled"] else BY_PYTHON
    steps = counted(options.repeats.steps, "step")
    measured = f"{counted(len(rounds), 'round')} of {steps} of {millis(spread(rounds).median)} ms"
    return (*merged_setup(options, jobs), ("buckets are recorded by", recorded_by), ("measured", measured))


def sections(options: Options, jobs: Sequence[Measured]) -> Iterator[Section]:
    (job,) = jobs
    times, single = job["times_ns"], Costs(**job["costs"])
    ratios = {mode: ratio(times[mode], times[OFF]) for mode in times if mode != OFF}
    heads = ("mode", "step ratio to off", interval_head(ratios.values()), "single rounds, 5..95 %", "what it is")
    rows = tuple(_row(mode, found) for mode, found in ratios.items())
    exported = [Rate(**job["exported"]).words()] if job["exported"] else []
    words = (*_words(ratios), single.words(), *exported)
    yield Section(words, (Grid("Step time against untraced", heads, rows, NOTE), single.grid()), (_chart(ratios),))


NOTE: Final = "The ratio of the medians within a round, and its median over the rounds."


def _row(mode: str, found: Spread) -> tuple[str, ...]:
    single = f"{found.q05:.4f} .. {found.q95:.4f}"
    return mode, f"{found.median:.4f}", ratio_interval(found, 4), single, (MODES | EXPORTING)[mode]


def _words(ratios: dict[str, Spread]) -> list[str]:
    if ON not in ratios or NULL not in ratios:
        return []
    on, null = ratios[ON], ratios[NULL]
    off = max(abs(null.low - 1), abs(null.high - 1))
    sure = interval_head([on], "95 %", f"the most of {counted(on.count, 'round')}")
    if off > TOLD_RATIO:
        return [
            f"Inconclusive: the null control deviates by {100 * off:.1f} %, and always-on tracing came out at"
            f" {on.median:.2f}. Run more rounds or use a quieter machine."
        ]
    told = f"Always-on tracing makes a step {on.median:.4f} times as long, at most {on.high:.4f} ({sure})."
    return [told, f"The null control deviates by {100 * off:.2f} % ({ratio_interval(null, 4)})."]


def _chart(ratios: dict[str, Spread]) -> Chart:
    bars = spread_line("ratio", list(ratios), list(ratios.values()))
    return Chart("Step ratio to untraced", "", "ratio", (bars,), kind="bars", caption="1 is as long as untraced.")


EXPERIMENT: Final = Experiment("overhead", Options, measure, title, sections, setup)
