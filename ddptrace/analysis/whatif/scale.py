"""The recorded training on many more ranks, on paper: what each algorithm's all-reduce would cost, and what it costs
that the slowest of many ranks sets the pace. Simulated, and told so wherever it is shown.

Each rank's own times in each step are drawn from all those that were recorded, of whatever rank and step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.whatif.again import Own, Scenario, own_times, play_all
from ddptrace.analysis.whatif.play import Floats
from ddptrace.analysis.whatif.predict import RECORDED, Predictor, refusal_of, scenario_of
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.analysis.whatif.wire import ALGORITHMS, Algorithm, Wire
from ddptrace.errors import DdptraceError

RANKS: Final = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
STEPS: Final = 12
PER_HOST: Final = 8


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
    predictor: Predictor, setting: Setting = RECORDED, counts: Sequence[int] = RANKS, per_host: int = PER_HOST
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
