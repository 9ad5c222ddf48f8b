"""Puts all answers of one run together, with its forecast for many more ranks.

The forecast trains on paper: what each algorithm's all-reduce would cost, and what it costs that the slowest of many
ranks sets the pace. It is simulated, and told so wherever it is shown. Each rank's own times in each step are drawn
from all those that were recorded, of whatever rank and step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.pipeline.forecast import PipelinePredictor
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.timeline.advice import RunAdvice, advise_run
from ddptrace.analysis.timeline.forecast import TimelinePredictor
from ddptrace.analysis.units.forecast import UnitPredictor
from ddptrace.analysis.whatif.advise import Advice, advise
from ddptrace.analysis.whatif.again import Own, Scenario, own_times, play_all
from ddptrace.analysis.whatif.play import Floats
from ddptrace.analysis.whatif.predict import RECORDED, Predictor, refusal_of, scenario_of
from ddptrace.analysis.whatif.tables import Cost, Prediction, Setting, SmallCost, WhatIf
from ddptrace.analysis.whatif.wire import ALGORITHMS, Algorithm, Wire
from ddptrace.errors import DdptraceError

AnyPredictor = Predictor | TimelinePredictor | PipelinePredictor | UnitPredictor
"""Of buckets on CPUs, of a device's profiler windows, of a pipeline, or of FSDP units."""
RANKS: Final = (8, 32, 128, 512, 2048)


@dataclass(frozen=True, slots=True)
class Forecast:
    """All None where nothing was asked. `of_device`: advice by the profiler windows of a device, which stands instead
    of `advice`. `scale`: simulated; None for one rank alone. `refusal`: why the run tells nothing."""

    advice: Advice | None = None
    of_device: RunAdvice | None = None
    scale: Table[ScaleRow] | None = None
    refusal: str | None = None


USUAL_CAPS_MB: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 100.0)
"""What is asked by itself. `advise` compares them too, so that no row of `whatif` beats its best."""


def answer(predictor: AnyPredictor, settings: Mapping[str, Setting]) -> WhatIf:
    """Of each setting by its name."""
    if not isinstance(predictor, Predictor):
        return predictor.answer(settings)
    model = predictor.model
    predictions = [predictor.predict(name, setting) for name, setting in settings.items()]
    return WhatIf(
        model.world_size,
        len(model.samples),
        round(predictor.recorded_ns),
        round(model.typical_exposed_ns),
        model.backwards,
        predictor.predict("as recorded", RECORDED),
        predictor.replay_error,
        cost_of(predictor),
        predictor.contention,
        Table(Prediction, predictions),
    )


def cost_of(predictor: Predictor) -> Cost:
    fit = predictor.model.fit
    least, most = (round(wire.latency_ns) for wire in fit.others)
    return Cost(
        round(fit.wire.latency_ns),
        least,
        most,
        1e9 / fit.wire.ns_per_byte,
        fit.least_nbytes,
        fit.most_nbytes,
        fit.sends,
        fit.error_ratio,
        _small(fit.wire),
    )


def _small(wire: Wire) -> SmallCost | None:
    if wire.small is None:
        return None
    bytes_per_s = 1e9 / wire.small.ns_per_byte if wire.small.ns_per_byte else None
    return SmallCost(round(wire.small.most_nbytes), round(wire.small.latency_ns), bytes_per_s)


def usual(predictor: AnyPredictor) -> dict[str, Setting]:
    """What is asked where the reader asked nothing."""
    if not isinstance(predictor, Predictor):
        return predictor.usual()
    asked = {f"bucket_cap_mb={cap:g}": Setting(caps=(cap,)) for cap in USUAL_CAPS_MB}
    return asked | {
        "fp16 hook": Setting(fp16=True),
        "an update every 4 backwards": Setting(accumulate=4),
        "twice the bandwidth": Setting(bandwidth=2.0),
        "half the latency": Setting(latency=0.5),
        "twice the ranks": Setting(ranks=2 * predictor.model.world_size),
        "perfect overlap": Setting(perfect_overlap=True),
        "free network": Setting(free_network=True),
    }


def forecast_of(predictor: Predictor) -> Forecast:
    """Of one recorded run."""
    several = predictor.model.world_size > 1
    return Forecast(advise(predictor), scale=scaling(predictor, counts=RANKS) if several else None)


def forecast_of_device(result: Result) -> Forecast:
    """Of a run with profiler windows of a device.

    Raises:
        DdptraceError: They hold no whole step.
    """
    return Forecast(of_device=advise_run(TimelinePredictor(result)))


# Many more ranks, on paper --------------------------------------------------------------------------------------------


SIMULATED_RANKS: Final = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
STEPS: Final = 12
"""Of each simulated training."""
PER_HOST: Final = 8
"""Ranks that share a link."""


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """A simulated training on so many ranks; medians over simulated steps."""

    ranks: int
    algorithm: Algorithm
    step_ns: int
    exposed_ns: int
    jitter_ns: int  # the step, less what it would take were all ranks as the median one
    efficiency_ratio: float  # the recorded compute alone, to this step
    is_simulated: bool = True


def scaling(
    predictor: Predictor, setting: Setting = RECORDED, counts: Sequence[int] = SIMULATED_RANKS, per_host: int = PER_HOST
) -> Table[ScaleRow]:
    """`per_host`: ranks that share a link, for the hierarchical algorithm. `counts` stand instead of
    `setting.ranks`. Raises DdptraceError for a run of one rank, in which nobody communicated, and for a setting of
    which the run cannot tell."""
    if predictor.model.world_size < 2:
        raise DdptraceError("one rank communicates with nobody, so the run holds no cost of a collective to scale")
    model = predictor.model
    refusal = refusal_of(setting, model)
    if refusal is not None:
        raise DdptraceError(refusal)
    plan = scenario_of(replace(setting, ranks=None), model, model.fit.wire, predictor.contention.ratio)
    pool = _pool([own_times(model, plan, sample) for sample in model.samples])
    alone = _alone_ns(pool)
    rows = [
        _scale_row(predictor, plan, pool, ranks, algorithm, per_host, alone)
        for algorithm in ALGORITHMS
        for ranks in counts
    ]
    return Table(ScaleRow, rows)


def _scale_row(
    predictor: Predictor, plan: Scenario, pool: Own, ranks: int, algorithm: Algorithm, per_host: int, alone: float
) -> ScaleRow:
    model = predictor.model
    wire: Wire = plan.wire.scaled(model.world_size, ranks, algorithm, per_host)
    chance = np.random.default_rng(ranks)
    drawn = (pool.changed(_drawn(chance.integers(len(pool.before_ns), size=ranks))) for _ in range(STEPS))
    scaled = replace(plan, wire=wire)
    steps, even = play_all(model, scaled, drawn), play_all(model, scaled, [_typical(pool)] * 2)
    took, to_typical = float(np.median(steps.step_ns)), predictor.to_typical
    return ScaleRow(
        ranks,
        algorithm,
        round(to_typical * took),
        round(to_typical * float(np.median(steps.exposed_ns))),
        round(to_typical * (took - even.step_ns[-1])),
        alone / took,
    )


def _drawn(rows: NDArray[np.int64]) -> Callable[[Floats], Floats]:
    return lambda column: column[rows]


def _pool(steps: Sequence[Own]) -> Own:
    """All recorded ranks of all steps, as if of one."""
    return Own(
        np.concatenate([own.before_ns for own in steps]),
        np.concatenate([own.ready_ns for own in steps]),
        np.concatenate([own.compute_ns for own in steps]),
        np.concatenate([own.after_ns for own in steps]),
        float(np.median([own.elsewhere_ns for own in steps])),
    )


def _typical(pool: Own) -> Own:
    """One rank, the median in everything."""
    return pool.changed(lambda column: np.asarray(np.median(column, axis=0))[None])


def _alone_ns(pool: Own) -> float:
    typical = _typical(pool)
    return float((typical.before_ns + typical.compute_ns + typical.after_ns)[0])
