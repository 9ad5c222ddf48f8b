"""`ddptrace.whatif` and `ddptrace.advise`: predict a recorded run under other settings, and the forecast of a
report. Joins load, analysis and the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from ddptrace.analyzer import AnalyzedRank, AnyPath, Progress, analyzed_rank, combined, each_rank, plan_of, uncollected
from ddptrace.errors import DdptraceError
from ddptrace.load.run import RankSource, load_rank

if TYPE_CHECKING:
    from ddptrace.analysis.rank_view import RankView
    from ddptrace.analysis.result import Result
    from ddptrace.analysis.timeline.advice import RunAdvice
    from ddptrace.analysis.timeline.forecast import TimelinePredictor
    from ddptrace.analysis.units.forecast import UnitPredictor
    from ddptrace.analysis.units.script import RankScript
    from ddptrace.analysis.whatif.advise import Advice
    from ddptrace.analysis.whatif.answer import AnyPredictor, Forecast
    from ddptrace.analysis.whatif.observed import ObservedRank
    from ddptrace.analysis.whatif.predict import Late, Predictor
    from ddptrace.analysis.whatif.tables import Setting, WhatIf

MOST_RANKS: Final = 16
MOST_NBYTES: Final = 30_000_000
MOST_BUCKETS: Final = 200
"""With more buckets, advice would take much longer than the rest of a report."""
NOT_RECORDED: Final = "ddptrace did not record it"
LARGE: Final = "the run is large; `ddptrace advise` predicts it"

Seen = TypeVar("Seen")
Refusal = str
"""Why a rank is of no use for a forecast."""


def whatif(
    path: AnyPath, settings: Mapping[str, Setting] | None = None, *, jobs: int = 1, progress: Progress | None = None
) -> WhatIf:
    """Predict the step of a recorded run under other settings. Needs no torch.

    Args:
        path: A run directory that `ddptrace.trace` wrote, of a program that trained one data-parallel module or units
            of FSDP2, or with profiler windows of a GPU; or traces of torch.profiler of a GPU.
        settings: Settings by name, such as {"small buckets": ddptrace.Setting(caps=(1,))}. None: the standard list of
            `ddptrace whatif`.
        jobs: Number of processes that read the run.
        progress: Function to call after each rank, with the number of ranks done and the number of all.

    Returns:
        One prediction per setting. If there is none, its `refusal` says why.

    Raises:
        RunDirectoryError: There is no such run.
        DdptraceError: The steps of the run cannot be replayed.
    """
    from ddptrace.analysis.whatif.answer import answer, usual

    found = predictor(path, jobs=jobs, progress=progress)
    return answer(found, usual(found) if settings is None else settings)


def advise(path: AnyPath, *, jobs: int = 1, progress: Progress | None = None) -> Advice | RunAdvice:
    """Find the best bucket sizes for a recorded run, what limits its step, and what would not help. Needs no torch.

    Args:
        path: A run directory that `ddptrace.trace` wrote, or traces of torch.profiler.
        jobs: Number of processes that read the run.
        progress: Function to call after each rank, with the number of ranks done and the number of all.

    Returns:
        The best caps in MiB, with the predicted gain, of a program that trained one data-parallel module on CPUs. Of
        any other, what its step loses as `ddptrace.analyze` has it, with the predicted step without each cause where
        profiler windows of a GPU show it; of FSDP2 units with the best way found, its memory and its calls.

    Raises:
        RunDirectoryError: There is no such run.
        DdptraceError: The run holds no step, or its steps cannot be replayed.
    """
    return understand(path, jobs=jobs, progress=progress).advice


def analyze_with_forecast(
    path: AnyPath | Sequence[AnyPath],
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    cache: AnyPath | None = None,
    comm_kernels: Sequence[str] = (),
    progress: Progress | None = None,
    align: bool = True,
) -> tuple[Result, Forecast]:
    """Analyze a run, and forecast it from the same reading. Arguments and errors are those of `ddptrace.analyze`.

    A run that tells nothing of other settings has a forecast that says why, or an empty one: of other people's traces
    nobody knows when gradients were ready.
    """
    from ddptrace.analysis.whatif.answer import Forecast
    from ddptrace.analysis.whatif.predict import late_ranks

    plan = plan_of(path, cache, comm_kernels)
    is_small = len(plan.sources) <= MOST_RANKS and sum(source.nbytes for source in plan.sources) <= MOST_NBYTES
    done = each_rank(_analyzed if is_small else _only_analyzed, plan, jobs, scheduler, progress)
    observed: list[ObservedRank | Refusal] = []
    result = combined(plan, _without_observed(done, observed), align=align)
    if not result.recorded:
        return result, Forecast()
    if is_small and any(activity.device for activity in result.activity):
        return result, _forecast_of_device(result)
    return result, forecast_from(observed, plan.world_size, late_ranks(result))


def _forecast_of_device(result: Result) -> Forecast:
    """Errors are the forecast's refusal, as in `forecast_from`."""
    from ddptrace.analysis.whatif.answer import Forecast, forecast_of_device

    try:
        return forecast_of_device(result)
    except Exception as error:
        return Forecast(refusal=_refusal(error))


def _without_observed(done: Iterable[tuple[AnalyzedRank, Seen]], observed: list[Seen]) -> Iterator[AnalyzedRank]:
    """Yield the analyzed ranks, and put what was observed into the list. Nothing else keeps their tables."""
    for rank, seen in done:
        observed.append(seen)
        yield rank


def forecast_from(
    ranks: Sequence[ObservedRank | Refusal], world_size: int | None, late: Sequence[Late] | None = None
) -> Forecast:
    """Forecast a run from its ranks, and from those that its analysis names as late. Whatever goes wrong is the
    forecast's refusal and no error: the report is written without it."""
    from ddptrace.analysis.whatif.answer import Forecast, forecast_of

    observed = []
    for rank in ranks:
        if isinstance(rank, str):
            return Forecast(refusal=rank)
        observed.append(rank)
    if max((len(step.sent) for rank in observed for step in rank.steps), default=0) > MOST_BUCKETS:
        return Forecast(refusal=LARGE)
    try:
        return forecast_of(_predictor(observed, world_size, late))
    except Exception as error:
        return Forecast(refusal=_refusal(error))


def predictor(path: AnyPath, *, jobs: int = 1, progress: Progress | None = None) -> AnyPredictor:
    """Make a predictor, which answers any number of questions about one run."""
    return understand(path, jobs=jobs, progress=progress).predictor


def understand(path: AnyPath, *, jobs: int = 1, progress: Progress | None = None) -> Understood:
    """Read a run once, for predictions and advice. Arguments are those of `advise`."""
    plan = plan_of(path, None, ())
    seen: list[tuple[ObservedRank, RankScript | None]] = []
    done = each_rank(_observed, plan, jobs, None, progress)
    result = combined(plan, _without_observed(done, seen), align=True)
    scripts = tuple(script for _, script in seen if script is not None)
    return Understood(tuple(observed for observed, _ in seen), plan.world_size, result, scripts)


@dataclass(frozen=True)
class Understood:
    """A run as predictions need it. `scripts`: of the ranks that have FSDP units."""

    observed: tuple[ObservedRank, ...]
    world_size: int | None
    result: Result
    scripts: tuple[RankScript, ...] = ()

    @cached_property
    def predictor(self) -> AnyPredictor:
        """Raises DdptraceError where the steps of the run cannot be replayed."""
        from ddptrace.analysis.pipeline.forecast import PipelinePredictor
        from ddptrace.analysis.units.forecast import UnitPredictor
        from ddptrace.analysis.whatif.predict import late_ranks

        if not self._reduces_on_cpus:
            if any(activity.device for activity in self.result.activity):
                return self._of_device
            if self.result.bubbles:
                return PipelinePredictor(self.result)
            if self._has_units:
                return UnitPredictor(self.result, self.scripts)
        return _predictor(self.observed, self.world_size, late_ranks(self.result))

    @property
    def _of_device(self) -> TimelinePredictor | UnitPredictor:
        from ddptrace.analysis.timeline.forecast import TimelinePredictor
        from ddptrace.analysis.units.forecast import UnitPredictor

        if not self._has_units:
            return TimelinePredictor(self.result)
        try:
            return UnitPredictor(self.result, self.scripts, TimelinePredictor(self.result))
        except DdptraceError as error:
            return TimelinePredictor(self.result, str(error))

    @property
    def _has_units(self) -> bool:
        return bool(self.scripts) and len(self.scripts) == len(self.observed)

    @cached_property
    def advice(self) -> Advice | RunAdvice:
        """Errors are those of `advise`."""
        from ddptrace.analysis.timeline.advice import advise_run, advise_without_forecast
        from ddptrace.analysis.whatif.advise import advise as advise_buckets
        from ddptrace.analysis.whatif.predict import Predictor

        try:
            found = self.predictor
        except DdptraceError as error:
            if self._reduces_on_cpus:
                raise
            return advise_without_forecast(self.result, str(error))
        return advise_buckets(found) if isinstance(found, Predictor) else advise_run(found)

    @property
    def _reduces_on_cpus(self) -> bool:
        return all(rank.steps and not rank.on_device for rank in self.observed)


def _predictor(ranks: Sequence[ObservedRank], world_size: int | None, late: Sequence[Late] | None) -> Predictor:
    from ddptrace.analysis.whatif.model import model_of
    from ddptrace.analysis.whatif.predict import Predictor

    return Predictor(model_of(ranks, world_size), late)


def _observed(source: RankSource) -> tuple[AnalyzedRank, tuple[ObservedRank, RankScript | None]]:
    """One rank, read and understood once. Raises DdptraceError where its steps cannot be replayed."""
    from ddptrace.analysis.units.script import script_of
    from ddptrace.analysis.whatif.observed import observe_view

    with uncollected():
        view, analyzed = _understood(source)
        return analyzed, (observe_view(view, analyzed.tables.steps), script_of(view))


def _analyzed(source: RankSource) -> tuple[AnalyzedRank, ObservedRank | Refusal]:
    """One rank, read and understood once, for the tables and for the forecast."""
    from ddptrace.analysis.whatif.observed import observe_view

    with uncollected():
        view, analyzed = _understood(source)
        if not view.rank.recorded:
            return analyzed, NOT_RECORDED
        try:
            return analyzed, observe_view(view, analyzed.tables.steps)
        except Exception as error:
            return analyzed, _refusal(error)


def _understood(source: RankSource) -> tuple[RankView, AnalyzedRank]:
    from ddptrace.analysis.analyze import tables_of
    from ddptrace.analysis.rank_view import view_of

    loaded = load_rank(source)
    view = view_of(loaded.run)
    return view, AnalyzedRank(tables_of(view), loaded.findings, loaded.said_world_size)


def _only_analyzed(source: RankSource) -> tuple[AnalyzedRank, Refusal]:
    return analyzed_rank(source), LARGE


def _refusal(error: Exception) -> Refusal:
    said = str(error)
    return said if isinstance(error, DdptraceError) else f"the forecast failed ({type(error).__name__}: {said})"
