"""Predictions of FSDP2 from one recorded setting against the measured other settings: time, exposed time and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np

import ddptrace
from benchmarks import hosts
from benchmarks.forks import in_forks, limit_s, prepare
from benchmarks.shards_program import ALL, BLOCKS, Order, Tried, be_rank, peaks
from benchmarks.whatif import HeldOut, MeasuredSetting, Progress, Regret, refusal, setup_of
from benchmarks.whatif_program import LOOPBACK
from benchmarks.whatif_sheet import Run, sheet
from ddptrace.analysis.rank_view import view_of
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.parallelism import UnitRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.units.forecast import UnitPredictor
from ddptrace.analysis.units.script import script_of
from ddptrace.bench.conduct import held
from ddptrace.errors import DdptraceError
from ddptrace.load.run import read_run
from ddptrace.render.sheet import Grid, Sheet
from ddptrace.render.sheet_page import write_sheet
from ddptrace.units import percent

MODEL: Final = f"{BLOCKS} blocks"
MEMORY_RATIO: Final = 0.05
NOTE: Final = (
    "Measured by torch's allocator, with torch's fake process group. A separate group has the memory of a shared one."
)


@dataclass(frozen=True, slots=True)
class Options:
    """`rates`: of the link between two hosts, as `tc` writes them, or "loopback"."""

    rates: tuple[str, ...] = ("200mbit", "500mbit", "1gbit")
    tried: tuple[Tried, ...] = ALL
    turns: int = 10

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise DdptraceError("use at least one turn")


def bench_shards(options: Options, folder: Path, progress: Progress) -> Sheet:
    """Make and judge all runs, and write shards.json, shards.md and shards.html into `folder`.

    Raises: DdptraceError if a rank fails, and if another benchmark writes into the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        left_out = refusal(options.rates)
        prepare(folder, "ddptrace.analyzer", "torch.testing._internal.distributed.fake_pg")
        (memory,) = in_forks([partial(peaks, 2, options.tried)], folder / "ranks.log", limit_s(len(ALL)))
        runs = list(_runs(options, folder, progress, memory, left_out))
        made = _sheet(setup_of(options.rates), left_out, runs)
        write_sheet(made, {"options": asdict(options), "left_out": left_out, "runs": runs}, folder)
    return made


def _runs(
    options: Options, folder: Path, progress: Progress, memory: Mapping[str, int], left_out: str
) -> Iterator[dict[str, Any]]:
    for rate in (one for one in options.rates if one == LOOPBACK or not left_out):
        run = _run(options, folder, rate, memory)
        errors = sorted(abs(row["error_ratio"]) for row in run["rows"])
        progress(f"{rate}: median error {errors[len(errors) // 2]:.1%}" if errors else rate)
        yield run


def _run(options: Options, folder: Path, rate: str, memory: Mapping[str, int]) -> dict[str, Any]:
    """Make a run on two ranks, and judge it in another process."""
    path, log = folder / "runs" / rate, folder / "ranks.log"
    store = Path(f"{path}.store")
    with ExitStack() as made:
        made.callback(store.unlink, missing_ok=True)
        network = None if rate == LOOPBACK else made.enter_context(hosts.network(2, 0, rate))
        order = Order(path, 2, options.tried, options.turns, network)
        patience_s = 2 * limit_s(len(list(order.numbered())))
        in_forks([partial(be_rank, rank, order) for rank in range(2)], log, patience_s)
    (found,) = in_forks([partial(judged, order, rate, dict(memory))], log, patience_s)
    return dict(found)


# Judging --------------------------------------------------------------------------------------------------------------


def judged(order: Order, rate: str, memory: Mapping[str, int]) -> dict[str, Any]:
    """Return all predictions of a run directory, as JSON."""
    found = predictors(order)
    truths = {one.name: _truth(each) for one, each in found.items()}
    rows, regrets = [], []
    for known in (one for one in found if one.is_plain):
        rows += [
            asdict(_held_out(known, asked, found[known], truths[asked.name], rate)) for asked in found if asked != known
        ]
        regrets.append(asdict(_regret(known, found, truths, rate)))
    forecast = {
        f"{known.name} → {asked.name}": found[known].predict(asked.name, asked.setting).peak_nbytes
        for known in found
        if known.is_plain
        for asked in found
    }
    return {
        "model": MODEL,
        "rate": rate,
        "truths": {name: asdict(one) for name, one in truths.items()},
        "replays": {one.name: each.replay_error for one, each in found.items()},
        "rows": rows,
        "regrets": regrets,
        "peaks": {"measured": dict(memory), "forecast": forecast},
    }


def predictors(order: Order) -> dict[Tried, UnitPredictor]:
    """Return a predictor for each setting, from its own steps alone."""
    result, views = ddptrace.analyze(order.run), [view_of(rank) for rank in read_run(order.run).ranks]
    found = {}
    for number, tried in enumerate(order.tried):
        steps = order.steps_of(number)
        found[tried] = UnitPredictor(
            _of_steps(result, steps), [one for view in views if (one := script_of(view, steps)) is not None]
        )
    return found


def _of_steps(result: Result, steps: frozenset[int]) -> Result:
    return replace(
        result,
        steps=Table(StepRow, [row for row in result.steps if row.step in steps]),
        units=Table(UnitRow, [row for row in result.units if row.step in steps]),
    )


def _truth(found: UnitPredictor) -> MeasuredSetting:
    by_step: dict[int, list[int]] = {}
    for row in found.result.steps:
        by_step.setdefault(row.step, []).append(row.wall_ns)
    walls = np.array([fmean(by_step[step]) for step in sorted(by_step)])
    noise = abs(np.median(walls[::2]) - np.median(walls[1::2])) / found.recorded_ns if len(walls) > 1 else 0.0
    return MeasuredSetting(found.recorded_ns, found.recorded_exposed_ns, float(noise))


def _held_out(known: Tried, asked: Tried, predictor: UnitPredictor, truth: MeasuredSetting, rate: str) -> HeldOut:
    told = predictor.predict(asked.name, asked.setting)
    if told.refusal is not None:
        raise DdptraceError(f"{known.name} does not predict {asked.name}: {told.refusal}")
    return HeldOut.of(told, truth, (MODEL, rate), known.name, contention_is_known=False)


def _regret(
    known: Tried, found: Mapping[Tried, UnitPredictor], truths: Mapping[str, MeasuredSetting], rate: str
) -> Regret:
    """Judge the measured setting that would be advised, among those that send the same bytes."""
    same = [one for one in found if not one.is_half]
    advised = min(same, key=lambda one: found[known].predict(one.name, one.setting).step_ns or 0).name
    best, took = min(truths[one.name].step_ns for one in same), truths[advised]
    return Regret(MODEL, rate, known.name, advised, took.step_ns / best - 1, took.noise_ratio)


# The sheet ------------------------------------------------------------------------------------------------------------


def _sheet(setup: Mapping[str, str], left_out: str, runs: Sequence[Run]) -> Sheet:
    made = sheet(setup, left_out, runs)
    return replace(
        made,
        name="shards",
        title="What if, of FSDP2: predicted from one setting, and measured",
        words=(*made.words, *_memory_words(runs)),
        grids=(
            *made.grids,
            Grid("Peak memory", ("setting", "measured MB", "forecast, worst off"), _memory(runs), NOTE),
        ),
    )


def _memory_words(runs: Sequence[Run]) -> Iterator[str]:
    off = [abs(ratio) for run in runs for _, ratio in _memory_off(run)]
    if off:
        met = "met" if max(off) <= MEMORY_RATIO else "missed"
        yield (
            f"Peak memory: {len(off)} predictions are off by {max(off):.1%} at most (required: {percent(MEMORY_RATIO)}:"
            f" {met})."
        )


def _memory_off(run: Run) -> Iterator[tuple[str, float]]:
    """Yield each setting that a forecast was made of, and how far off the forecast is."""
    measured = run["peaks"]["measured"]
    for name, nbytes in run["peaks"]["forecast"].items():
        asked = name.split(" → ")[1]
        if asked in measured:
            yield asked, nbytes / measured[asked] - 1


def _memory(runs: Sequence[Run]) -> tuple[tuple[str, ...], ...]:
    measured = runs[0]["peaks"]["measured"] if runs else {}
    off = [one for run in runs for one in _memory_off(run)]
    worst = {name: max((ratio for of, ratio in off if of == name), key=abs, default=0.0) for name in measured}
    return tuple((name, f"{nbytes / 1e6:.1f}", f"{worst[name]:+.1%}") for name, nbytes in measured.items())
