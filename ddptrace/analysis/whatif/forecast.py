"""What a report tells beside what was measured: advice, and many ranks on paper; or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.whatif.advise import Advice, advise
from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.analysis.whatif.scale import ScaleRow, scaling

RANKS: Final = (8, 32, 128, 512, 2048)


@dataclass(frozen=True, slots=True)
class Forecast:
    """All None where nothing was asked. `scale`: simulated; None for one rank alone. `refusal`: why the run tells
    nothing."""

    advice: Advice | None = None
    scale: Table[ScaleRow] | None = None
    refusal: str | None = None


def forecast_of(predictor: Predictor) -> Forecast:
    """Of one recorded run."""
    several = predictor.model.world_size > 1
    return Forecast(advise(predictor), scaling(predictor, counts=RANKS) if several else None)
