"""All answers of one run together, with what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.pipeline.forecast import PipelinePredictor
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.timeline.forecast import TimelinePredictor
from ddptrace.analysis.whatif.advise import Advice, advise
from ddptrace.analysis.whatif.predict import RECORDED, Predictor
from ddptrace.analysis.whatif.scale import ScaleRow, scaling
from ddptrace.analysis.whatif.tables import Cost, Prediction, Setting, SmallCost, WhatIf
from ddptrace.analysis.whatif.wire import Wire

AnyPredictor = Predictor | TimelinePredictor | PipelinePredictor
"""Of buckets on CPUs, of a device's profiler windows, or of a pipeline."""
RANKS: Final = (8, 32, 128, 512, 2048)


@dataclass(frozen=True, slots=True)
class Forecast:
    """All None where nothing was asked. `scale`: simulated; None for one rank alone. `refusal`: why the run tells
    nothing."""

    advice: Advice | None = None
    scale: Table[ScaleRow] | None = None
    refusal: str | None = None


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
    caps = (0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 100.0)
    asked = {f"bucket_cap_mb={cap:g}": Setting(caps=(cap,)) for cap in caps}
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
    return Forecast(advise(predictor), scaling(predictor, counts=RANKS) if several else None)
