"""`ddptrace.whatif` and `ddptrace.advise`: predict a recorded run under other settings, and the forecast of a
report. Joins load, analysis and the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ddptrace.analyzer import AnalyzedRank, AnyPath, Progress, analyzed_rank, combined, each_rank, plan_of, uncollected
from ddptrace.errors import DdptraceError
from ddptrace.load.run import RankSource, load_rank, open_run
from ddptrace.schema import run_path

if TYPE_CHECKING:
    from ddptrace.analysis.result import Result
    from ddptrace.analysis.timeline.advice import RunAdvice
    from ddptrace.analysis.whatif.advise import Advice
    from ddptrace.analysis.whatif.answer import AnyPredictor, Forecast
    from ddptrace.analysis.whatif.observed import ObservedRank
    from ddptrace.analysis.whatif.predict import Predictor
    from ddptrace.analysis.whatif.tables import Setting, WhatIf

MOST_RANKS: Final = 16
MOST_NBYTES: Final = 30_000_000
MOST_BUCKETS: Final = 200
"""With more buckets, advice would take much longer than the rest of a report."""
NOT_RECORDED: Final = "ddptrace did not record it"
LARGE: Final = "the run is large; `ddptrace advise` predicts it"

Refusal = str
"""Why a rank is of no use for a forecast."""


def whatif(
    path: AnyPath, settings: Mapping[str, Setting] | None = None, *, jobs: int = 1, progress: Progress | None = None
) -> WhatIf:
    """Predict the step of a recorded run under other settings. Needs no torch.

    Args:
        path: A run directory that `ddptrace.trace` wrote, of a program that trained one data-parallel module on CPUs,
            or with profiler windows of a GPU; or traces of torch.profiler of a GPU.
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
        profiler windows of a GPU show it.

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

    plan = plan_of(path, cache, comm_kernels)
    is_small = len(plan.sources) <= MOST_RANKS and sum(source.nbytes for source in plan.sources) <= MOST_NBYTES
    done = list(each_rank(_analyzed if is_small else _only_analyzed, plan, jobs, scheduler, progress))
    result = combined(plan, [rank for rank, _ in done], align=align)
    if not result.recorded:
        return result, Forecast()
    return result, forecast_from([observed for _, observed in done], plan.world_size)


def forecast_from(ranks: Sequence[ObservedRank | Refusal], world_size: int | None) -> Forecast:
    """Forecast a run from its ranks. Whatever goes wrong is the forecast's refusal and no error: the report is written
    without it."""
    from ddptrace.analysis.whatif.answer import Forecast, forecast_of

    observed = []
    for rank in ranks:
        if isinstance(rank, str):
            return Forecast(refusal=rank)
        observed.append(rank)
    if max((len(step.sent) for rank in observed for step in rank.steps), default=0) > MOST_BUCKETS:
        return Forecast(refusal=LARGE)
    try:
        return forecast_of(_predictor(observed, world_size))
    except Exception as error:
        return Forecast(refusal=_refusal(error))


def predictor(path: AnyPath, *, jobs: int = 1, progress: Progress | None = None) -> AnyPredictor:
    """Make a predictor, which answers any number of questions about one run."""
    return understand(path, jobs=jobs, progress=progress).predictor


def understand(path: AnyPath, *, jobs: int = 1, progress: Progress | None = None) -> Understood:
    """Read a run once, for predictions and advice. Arguments are those of `advise`."""
    plan = open_run([run_path(path)])
    ranks = list(each_rank(_understood, plan, jobs, None, progress))
    analyzed = [rank for _, rank in ranks if rank is not None]
    result = combined(plan, analyzed, align=True) if ranks and len(analyzed) == len(ranks) else None
    return Understood(tuple(observed for observed, _ in ranks), plan.world_size, result)


@dataclass(frozen=True)
class Understood:
    """A run as predictions need it. `result`: None where all ranks reduce buckets on CPUs, which needs no tables."""

    observed: tuple[ObservedRank, ...]
    world_size: int | None
    result: Result | None

    @cached_property
    def predictor(self) -> AnyPredictor:
        """Raises DdptraceError where the steps of the run cannot be replayed."""
        from ddptrace.analysis.pipeline.forecast import PipelinePredictor
        from ddptrace.analysis.timeline.forecast import TimelinePredictor

        if self.result is not None and any(activity.device for activity in self.result.activity):
            return TimelinePredictor(self.result)
        if self.result is not None and self.result.bubbles:
            return PipelinePredictor(self.result)
        return _predictor(self.observed, self.world_size)

    @cached_property
    def advice(self) -> Advice | RunAdvice:
        """Errors are those of `advise`."""
        from ddptrace.analysis.timeline.advice import advise_run, advise_without_forecast
        from ddptrace.analysis.whatif.advise import advise as advise_buckets
        from ddptrace.analysis.whatif.predict import Predictor

        try:
            found = self.predictor
        except DdptraceError as error:
            if self.result is None:
                raise
            return advise_without_forecast(self.result, str(error))
        return advise_buckets(found) if isinstance(found, Predictor) else advise_run(found)


def _understood(source: RankSource) -> tuple[ObservedRank, AnalyzedRank | None]:
    """One rank as the model of buckets needs it, and its tables where it shows no buckets on CPUs."""
    from ddptrace.analysis.analyze import tables_of
    from ddptrace.analysis.rank_view import view_of
    from ddptrace.analysis.steps.breakdown import step_rows
    from ddptrace.analysis.whatif.observed import observe_view

    with uncollected():
        loaded = load_rank(source)
        view = view_of(loaded.run)
        observed = observe_view(view, step_rows(view))
        if observed.steps and not observed.on_device:
            return observed, None
        return observed, AnalyzedRank(tables_of(view), loaded.findings, loaded.said_world_size)


def _predictor(ranks: Sequence[ObservedRank], world_size: int | None) -> Predictor:
    from ddptrace.analysis.whatif.model import model_of
    from ddptrace.analysis.whatif.predict import Predictor

    return Predictor(model_of(ranks, world_size))


def _analyzed(source: RankSource) -> tuple[AnalyzedRank, ObservedRank | Refusal]:
    """One rank, read and understood once, for the tables and for the forecast."""
    from ddptrace.analysis.analyze import tables_of
    from ddptrace.analysis.rank_view import view_of
    from ddptrace.analysis.whatif.observed import observe_view

    with uncollected():
        loaded = load_rank(source)
        view = view_of(loaded.run)
        analyzed = AnalyzedRank(tables_of(view), loaded.findings, loaded.said_world_size)
        if not loaded.run.recorded:
            return analyzed, NOT_RECORDED
        try:
            return analyzed, observe_view(view, analyzed.tables.steps)
        except Exception as error:
            return analyzed, _refusal(error)


def _only_analyzed(source: RankSource) -> tuple[AnalyzedRank, Refusal]:
    return analyzed_rank(source), LARGE


def _refusal(error: Exception) -> Refusal:
    said = str(error)
    return said if isinstance(error, DdptraceError) else f"the forecast failed ({type(error).__name__}: {said})"
