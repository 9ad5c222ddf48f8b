"""What each recording predicts for all other settings, against what these took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.whatif_program import Tried
from ddptrace.analysis.whatif.advise import best_of
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import ObservedRank, observe
from ddptrace.analysis.whatif.predict import RECORDED, Predictor
from ddptrace.load.run import read_run


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
        told, truth = predictors[known].predict(asked.name, asked.setting), truths[asked.name]
        step, low, high = (ns or 0 for ns in (told.step_ns, told.low_ns, told.high_ns))
        off = abs((told.exposed_ns or 0) - truth.exposed_ns)
        yield HeldOut(
            *where,
            known.name,
            asked.name,
            step,
            truth.step_ns,
            step / truth.step_ns - 1,
            truth.noise_ratio,
            off / truth.exposed_ns if truth.exposed_ns else None,
            off / truth.step_ns,
            low <= truth.step_ns <= high,
            predictors[known].contention.is_known,
        )


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
