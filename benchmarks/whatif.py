"""Predictions from one recorded setting against the measured other settings: how far off are they, is the advice
good?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import count, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks import hosts
from benchmarks.forks import in_forks, limit_s, prepare
from benchmarks.whatif_program import LOOPBACK, Order, Tried, be_rank, tried_of
from benchmarks.whatif_sheet import sheet
from ddptrace.analysis.whatif.advise import best_of
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import ObservedRank, observe
from ddptrace.analysis.whatif.predict import RECORDED, Predictor
from ddptrace.analysis.whatif.tables import Prediction
from ddptrace.bench.conduct import held
from ddptrace.bench.job import device_name
from ddptrace.bench.workloads import workload
from ddptrace.errors import DdptraceError
from ddptrace.load.run import read_run
from ddptrace.render.sheet import Sheet
from ddptrace.render.sheet_page import write_sheet

SECONDS_A_BYTE: Final = 1 / 20e6
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """`rates`: of the links between two hosts, as `tc` writes them, or "loopback"."""

    rates: tuple[str, ...] = ("200mbit", "500mbit", "1gbit", LOOPBACK)
    models: tuple[str, ...] = ("mlp", "convnet", "gpt")
    caps_mb: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 100.0)
    backwards: tuple[int, ...] = (1, 2, 4, 8)
    fp16: bool = True
    turns: int = 10

    def __post_init__(self) -> None:
        for name in self.models:
            workload(name)
        if self.turns < 1 or not self.caps_mb or min(self.caps_mb) <= 0:
            raise DdptraceError("use at least one turn, and caps above 0 MiB")

    @property
    def tried(self) -> tuple[Tried, ...]:
        return tried_of(self.caps_mb, self.backwards, fp16=self.fp16)


def bench_whatif(options: Options, folder: Path, progress: Progress) -> Sheet:
    """Make and judge all runs, and write whatif.json, whatif.md and whatif.html into `folder`.

    Raises: DdptraceError if a rank fails, and if another benchmark writes into the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        left_out = refusal(options.rates)
        prepare(folder, "ddptrace.analyzer")
        runs = list(_runs(options, folder, progress, left_out))
        steps = {"steps of a setting": str(options.turns * 2 + 4)}
        made = sheet(setup_of(options.rates) | steps, left_out, runs)
        write_sheet(made, {"options": asdict(options), "left_out": left_out, "runs": runs}, folder)
    return made


def refusal(rates: Sequence[str]) -> str:
    """Return why this machine has no links with a set rate; empty if it has, or if none is asked for."""
    return "" if set(rates) == {LOOPBACK} else hosts.refusal()


def _runs(options: Options, folder: Path, progress: Progress, left_out: str) -> Iterator[dict[str, Any]]:
    asked = [one for one in product(options.rates, options.models) if one[0] == LOOPBACK or not left_out]
    for at, (rate, model) in zip(count(1), asked):
        run = _run(options, folder, rate, model)
        errors = sorted(abs(row["error_ratio"]) for row in run["rows"])
        middle = f", median error {errors[len(errors) // 2]:.1%}" if errors else ""
        progress(f"{at} of {len(asked)}: {model} at {rate}{middle}")
        yield run


def _run(options: Options, folder: Path, rate: str, model: str) -> dict[str, Any]:
    """Make a run on two ranks, and judge it in another process."""
    path, log = folder / "runs" / f"{model}-{rate}", folder / "ranks.log"
    store = Path(f"{path}.store")
    patience_s = 4 * limit_s(len(options.tried) * (options.turns * 2 + 5))
    with ExitStack() as made:
        made.callback(store.unlink, missing_ok=True)
        network = None if rate == LOOPBACK else made.enter_context(hosts.network(2, 0, rate))
        order = Order(path, 2, model, options.tried, options.turns, network)
        in_forks([partial(be_rank, rank, order) for rank in range(2)], log, patience_s)
    (found,) = in_forks([partial(judged, path, options.tried, model, rate)], log, patience_s)
    return dict(found)


def setup_of(rates: Sequence[str]) -> dict[str, str]:
    """Return what a run is made on. `rates`: of its links."""
    return {
        "ranks": "2",
        "backend": "gloo",
        "device": device_name(torch.device("cpu")),
        "torch": version("torch"),
        "links": ", ".join(rates),
    }


@dataclass(frozen=True, slots=True)
class MeasuredSetting:
    """What one setting took. `noise_ratio`: distance between the medians of the odd and of the even steps."""

    step_ns: float
    exposed_ns: float
    noise_ratio: float


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One setting, predicted from a recording of another. Ratios are of the measured step, except for
    `exposed_off_ratio`, of the measured exposed time."""

    model: str
    rate: str
    known: str
    asked: str
    step_ns: int
    measured_ns: float
    error_ratio: float
    noise_ratio: float
    exposed_off_ratio: float | None
    exposed_of_step_ratio: float  # the same difference
    is_within: bool  # the prediction's interval
    contention_is_known: bool

    @classmethod
    def of(
        cls, told: Prediction, truth: MeasuredSetting, where: tuple[str, str], known: str, *, contention_is_known: bool
    ) -> HeldOut:
        """Compare an answered prediction with what was measured."""
        step, low, high = (ns or 0 for ns in (told.step_ns, told.low_ns, told.high_ns))
        off = abs((told.exposed_ns or 0) - truth.exposed_ns)
        return cls(
            *where,
            known,
            told.name,
            step,
            truth.step_ns,
            step / truth.step_ns - 1,
            truth.noise_ratio,
            off / truth.exposed_ns if truth.exposed_ns else None,
            off / truth.step_ns,
            low <= truth.step_ns <= high,
            contention_is_known,
        )


@dataclass(frozen=True, slots=True)
class Regret:
    """How much longer the cap that a recording advises takes than the best measured cap."""

    model: str
    rate: str
    known: str
    advised: str
    regret_ratio: float
    noise_ratio: float


def judged(run: Path, tried: Sequence[Tried], model: str, rate: str) -> dict[str, Any]:
    """Return all predictions of a run directory, as JSON."""
    predictors = _predictors(run, tried)
    truths = {one.name: _truth(found) for one, found in predictors.items()}
    rows, regrets = [], []
    for known in (one for one in predictors if one.is_plain):
        rows += list(_rows(known, predictors, truths, (model, rate)))
        regrets.append(_regret(known, predictors, truths, (model, rate)))
    replays = {one.name: found.replay_error for one, found in predictors.items()}
    return {
        "model": model,
        "rate": rate,
        "truths": {name: asdict(one) for name, one in truths.items()},
        "replays": replays,
        "rows": [asdict(one) for one in rows],
        "regrets": [asdict(one) for one in regrets],
    }


def _predictors(run: Path, tried: Sequence[Tried]) -> dict[Tried, Predictor]:
    """Return a predictor for each setting, from its own steps alone."""
    ranks = read_run(run).ranks
    return {
        one: Predictor(model_of([_alone(observe(rank, number)) for rank in ranks])) for number, one in enumerate(tried)
    }


def _alone(rank: ObservedRank) -> ObservedRank:
    return replace(rank, reducers=1)


def _truth(found: Predictor) -> MeasuredSetting:
    steps = np.array([sample.wall_ns.mean() for sample in found.model.samples])
    halves = float(np.median(steps[::2])), float(np.median(steps[1::2]))
    exposed = float(np.median([sample.exposed_ns for sample in found.model.samples]))
    return MeasuredSetting(found.recorded_ns, exposed, abs(halves[0] - halves[1]) / found.recorded_ns)


def _rows(
    known: Tried, predictors: Mapping[Tried, Predictor], truths: Mapping[str, MeasuredSetting], where: tuple[str, str]
) -> Iterator[HeldOut]:
    for asked in predictors:
        if asked == known:
            continue
        told = predictors[known].predict(asked.name, asked.setting)
        is_known = predictors[known].contention.is_known
        yield HeldOut.of(told, truths[asked.name], where, known.name, contention_is_known=is_known)


def _regret(
    known: Tried, predictors: Mapping[Tried, Predictor], truths: Mapping[str, MeasuredSetting], where: tuple[str, str]
) -> Regret:
    """Judge the measured cap that would be advised: the recording's own if none is better."""
    caps = [one for one in predictors if one.is_plain]
    told = [predictors[known].predict(one.name, one.setting) for one in caps]
    advised = best_of(predictors[known].predict(known.name, RECORDED), told).name
    best = min(truths[one.name].step_ns for one in caps)
    took = truths[advised]
    return Regret(*where, known.name, advised, took.step_ns / best - 1, took.noise_ratio)
