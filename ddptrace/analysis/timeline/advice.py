"""What to change in a run whose buckets cannot be planned: its savings as `ddptrace analyze` has them, each with what
the step would take without its cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ddptrace.analysis.pipeline.forecast import PipelinePredictor
from ddptrace.analysis.result import Result
from ddptrace.analysis.savings import EXPOSED
from ddptrace.analysis.summary import WORTH_RATIO, summarize
from ddptrace.analysis.tables.steps import SavingRow
from ddptrace.analysis.timeline.forecast import TimelinePredictor, late_rank
from ddptrace.analysis.units.advice import best_ways, calls_of
from ddptrace.analysis.units.forecast import UnitPredictor
from ddptrace.analysis.whatif.tables import Prediction, Setting
from ddptrace.errors import DdptraceError
from ddptrace.units import counted, duration

MUCH_RATIO: Final = 0.2
RunPredictor = TimelinePredictor | PipelinePredictor | UnitPredictor
REMEDIES: Final[Mapping[str, Setting]] = {
    EXPOSED: Setting(perfect_overlap=True),
    "work": Setting(host=2.0),
    "data": Setting(free_data=True),
}
"""By cause of a saving."""


@dataclass(frozen=True, slots=True)
class RunLimit:
    """One of the savings, and the step without its cause."""

    saving: SavingRow  # as `savings` has it
    rank: int | None  # of a late rank
    remedy: Prediction | None  # the step without it, or with half of it; None where nothing predicts it


@dataclass(frozen=True, slots=True, repr=False)
class RunAdvice:
    """What limits the step of a run whose buckets cannot be planned."""

    recorded_ns: int  # the typical step, as recorded
    replay_error_ratio: float | None  # (replayed step - recorded step) / recorded step; None where nothing is predicted
    limits: tuple[RunLimit, ...]  # what limits the step, in the order of `savings`
    useful: tuple[Prediction, ...]  # what is sure to win something besides
    useless: tuple[Prediction, ...]  # what would not help
    refusal: str | None = None  # why nothing is predicted
    recorded: Prediction | None = None  # the recorded FSDP units, with their peak memory; None of other runs
    best: Prediction | None = None  # the best way to gather, keep and divide FSDP units; None where none surely wins
    calls: tuple[str, ...] = ()  # lines of Python that set it

    def __repr__(self) -> str:
        return f"RunAdvice: {counted(len(self.limits), 'limit')} of a step of {duration(self.recorded_ns)}"

    def to_json_dict(self) -> dict[str, Any]:
        """The documented keys of `ddptrace advise --json`."""
        return asdict(self)


def advise_run(predictor: RunPredictor) -> RunAdvice:
    """Advise on a run whose profiler windows show a device, or with a pipeline."""
    limits = tuple(
        RunLimit(row, late_rank(row), _remedy(row, predictor))
        for row in predictor.result.savings
        if row.cost_ratio >= WORTH_RATIO
    )
    shown = [limit.remedy.setting for limit in limits if limit.remedy is not None]
    others = [
        prediction
        for name, setting in predictor.usual().items()
        if setting not in shown and (prediction := predictor.predict(name, setting)).refusal is None
    ]
    found = RunAdvice(
        round(predictor.recorded_ns),
        predictor.replay_error,
        limits,
        tuple(one for one in others if (one.gain_low_ratio or 0.0) > WORTH_RATIO),
        tuple(filter(_wins_nothing, others)),
    )
    return _with_units(found, predictor) if isinstance(predictor, UnitPredictor) else found


def _wins_nothing(one: Prediction) -> bool:
    """Whether it wins nothing worth having, and is not so unsure that it might win much."""
    return (one.gain_ratio or 0.0) < WORTH_RATIO and (one.gain_high_ratio or 0.0) < MUCH_RATIO


def _with_units(found: RunAdvice, predictor: UnitPredictor) -> RunAdvice:
    best = best_ways(predictor)
    calls = () if best is None else calls_of(best.setting, predictor.units)
    return replace(found, recorded=predictor.predict("as recorded", Setting()), best=best, calls=calls)


def advise_without_forecast(result: Result, reason: str) -> RunAdvice:
    """Advise on a run that nothing can play again.

    Raises:
        DdptraceError: There is no step, so there is nothing to advise on. It says `reason`.
    """
    typical = summarize(result).typical
    if typical is None:
        raise DdptraceError(reason)
    limits = (RunLimit(row, late_rank(row), None) for row in result.savings if row.cost_ratio >= WORTH_RATIO)
    return RunAdvice(typical.window_ns, None, tuple(limits), (), (), reason)


def _remedy(row: SavingRow, predictor: RunPredictor) -> Prediction | None:
    """The step without the saving's cause; None where nothing predicts it, or where that wins more than the saving is
    and so does not win it alone."""
    rank = late_rank(row)
    setting = REMEDIES.get(row.cause) if rank is None else Setting(even=rank)
    if setting is None:
        return None
    name = next((name for name, usual in predictor.usual().items() if usual == setting), "")
    prediction = predictor.predict(name, setting)
    wins_by_more = (prediction.gain_ratio or 0.0) > row.cost_ratio + WORTH_RATIO
    return None if prediction.refusal is not None or wins_by_more else prediction
