"""What tracing costs a training step, beside other ways to watch it.

Each round runs the same few steps in every mode, in an order that changes from round to round; a round's ratio is that
mode's median step over the untraced one's in the same round. "null control" is untraced too: its ratio is noise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks.overhead.costs import Costs, costs
from benchmarks.overhead.exporting import Rate, from_a_companion, provider_for, sustained
from benchmarks.overhead.receiver import receiver
from ddptrace.bench.asked import known, only_one
from ddptrace.bench.cells import interval_head, ratio_interval, spread_line
from ddptrace.bench.setup import merged, setup_of
from ddptrace.bench.statistics import Spread
from ddptrace.bench.timing import Repeats, interleaved, ratio, spread
from ddptrace.bench.workloads import workload
from ddptrace.render.sheet import Chart, Grid, Sheet
from ddptrace.render.words import counted, millis

if TYPE_CHECKING:
    from ddptrace.bench.job import Job

OFF: Final = "off"
NULL: Final = "null control"
ON: Final = "always-on"
COUNTER: Final = "CommDebugMode"
CAP_MB: Final = 4
TOLD_RATIO: Final = 0.005
"""What the null control may be off by, for the cost of tracing to be told."""
COMPILED: Final = "compiled code"
BY_PYTHON: Final = "Python (less by what `ddptrace compile` makes)"
MODES: Final = {
    OFF: "untraced",
    NULL: "untraced again: what differs here is noise",
    ON: "`ddptrace.trace`",
    "profiled": "`ddptrace.trace` in a window of torch.profiler",
    "torch.profiler": "torch.profiler alone, CPU activities",
    COUNTER: "torch's counter of collectives, a dispatch mode",
    "comm hook": "DDP with a Python communication hook that only all-reduces",
}
THREAD: Final = "exporting thread"
COMPANION: Final = "companion"
EXPORTING: Final = {
    THREAD: "`ddptrace.trace` with a provider of the program's own: a thread of the training makes and sends spans",
    COMPANION: "`ddptrace.trace` and `OTEL_*`: a process beside the training makes and sends spans and metrics",
}
"""Modes that are felt only where steps go on for some seconds, so to be asked for: `--steps 30`."""


@dataclass(frozen=True, slots=True)
class Options:
    """`modes`: some of MODES and EXPORTING; "off" is always measured."""

    ranks: tuple[int, ...] = (2,)
    backend: str | None = None
    workload: str = "gpt"
    modes: tuple[str, ...] = tuple(MODES)
    repeats: Repeats = field(default_factory=lambda: Repeats(rounds=20))

    def __post_init__(self) -> None:
        only_one(self.ranks)
        workload(self.workload)
        known("mode", self.modes, MODES | EXPORTING)


def measure(job: Job, options: Options) -> dict[str, Any]:
    """Times by mode and round, and what single hooks cost. Collective."""
    from ddptrace.capture import compiled

    single = costs(job)
    modes = tuple(dict.fromkeys((OFF, *options.modes)))
    with receiver() if EXPORTING.keys() & set(modes) else nullcontext("") as address:
        around = _around(job, options.repeats, address)
        times = interleaved(job, _steps(job, options.workload, modes), options.repeats, around)
        exported = sustained(job.folder / "runs" / f"{COMPANION}-0", address) if COMPANION in modes else None
    return {
        "setup": setup_of(job), "times_ns": times, "costs": asdict(single), "exported": exported and asdict(exported),
        "compiled": compiled.loaded() is not None,
    }  # fmt: skip


def _steps(job: Job, name: str, modes: tuple[str, ...]) -> dict[str, Callable[[], None]]:
    """One model for all modes, but for the one that hooks it."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    from ddptrace.bench.strategies import stock_ddp
    from ddptrace.bench.training import Trainee

    plain = Trainee(job, workload(name), stock_ddp(CAP_MB))
    steps = dict.fromkeys(modes, plain.step)
    if "comm hook" in modes:
        hooked = Trainee(job, workload(name), stock_ddp(CAP_MB))
        hooked.model.register_comm_hook(None, allreduce_hook)  # type: ignore[operator] # a DDP has it
        steps["comm hook"] = hooked.step
    if COUNTER in modes:
        steps[COUNTER] = lambda: _counted(plain.step)
    return steps


def _counted(step: Callable[[], None]) -> None:
    """It is entered for each step: torch's own module hooks fail in the second step inside one."""
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode():
        step()


def _around(job: Job, repeats: Repeats, address: str) -> Callable[[str, int], AbstractContextManager[object]]:
    import torch

    from ddptrace.bench.traced import recording
    from ddptrace.capture import tap

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
        tap.remove()  # what the last trace left in torch's dispatcher costs something too
        if mode == "torch.profiler":
            return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        return nullcontext()

    return around


def sheet(options: Options, measured: list[dict[str, Any]]) -> Sheet:
    one = measured[0]
    times, costs = one["times_ns"], Costs(**one["costs"])
    ratios = {mode: ratio(times[mode], times[OFF]) for mode in times if mode != OFF}
    untraced = spread(times[OFF])
    rounds = f"{len(times[OFF])} rounds of {options.repeats.steps} steps of {millis(untraced.median)} ms"
    recording = COMPILED if one["compiled"] else BY_PYTHON
    setup = (*merged(measured), ("buckets are recorded by", recording), ("measured", rounds))
    heads = ("mode", "step ratio to off", interval_head(ratios.values()), "single rounds, 5..95 %", "what it is")
    grids = (
        Grid("Step time against untraced", heads, tuple(_row(mode, found) for mode, found in ratios.items()), NOTE),
        costs.grid(),
    )
    title = f"What tracing costs: {options.workload}, stock DDP, {CAP_MB} MiB buckets"
    words = [*_words(ratios), costs.words(), *([Rate(**one["exported"]).words()] if one["exported"] else [])]
    return Sheet("overhead", title, setup, tuple(words), grids, (_chart(ratios),))


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
            "What always-on tracing costs cannot be told: the null control, untraced like its reference, reaches"
            f" {100 * off:.1f} % from 1; always-on came out at {on.median:.2f}. Measure more rounds, or on a quieter"
            " machine."
        ]
    told = f"Always-on tracing makes a step {on.median:.4f} times as long, at most {on.high:.4f} ({sure})."
    return [told, f"The null control reaches {100 * off:.2f} % from 1 ({ratio_interval(null, 4)})."]


def _chart(ratios: dict[str, Spread]) -> Chart:
    bars = spread_line("ratio", list(ratios), list(ratios.values()))
    return Chart("Step ratio to untraced", "", "ratio", (bars,), kind="bars", caption="1 is as long as untraced.")
