"""`ddptrace.whatif` and `ddptrace.advise`: predict a recorded run under other settings. Joins load, analysis and the
engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ddptrace.analyzer import AnyPath, Progress, uncollected
from ddptrace.engine import run_each
from ddptrace.errors import DdptraceError, RunDirectoryError
from ddptrace.load.run import Plan, RankSource, load_rank, open_run
from ddptrace.schema import run_path

if TYPE_CHECKING:
    from ddptrace.analysis.whatif.advise import Advice
    from ddptrace.analysis.whatif.answer import Forecast
    from ddptrace.analysis.whatif.observed import ObservedRank
    from ddptrace.analysis.whatif.predict import Predictor
    from ddptrace.analysis.whatif.tables import Setting, WhatIf

MOST_RANKS: Final = 16
MOST_NBYTES: Final = 30_000_000
MOST_BUCKETS: Final = 200
"""With more buckets, advice would take much longer than the rest of a report."""
LARGE: Final = "the run is large; `ddptrace advise` predicts it"


def whatif(
    path: AnyPath, settings: Mapping[str, Setting], *, jobs: int = 1, progress: Progress | None = None
) -> WhatIf:
    """Predict the step of a recorded run under other settings. Needs no torch.

    Args:
        path: A run directory that `ddptrace.trace` wrote, of a program with one data-parallel module.
        settings: Settings by name, such as {"small buckets": ddptrace.Setting(caps_mb=(1,))}.
        jobs: Number of processes that read the run.
        progress: Function to call after each rank, with the number of ranks done and the number of all.

    Returns:
        One prediction per setting. If there is none, its `refusal` says why.

    Raises:
        RunDirectoryError: There is no such run.
        DdptraceError: The steps of the run cannot be replayed.
    """
    from ddptrace.analysis.whatif.answer import answer

    return answer(predictor(path, jobs=jobs, progress=progress), settings)


def advise(path: AnyPath, *, jobs: int = 1, progress: Progress | None = None) -> Advice:
    """Find the best bucket sizes for a recorded run, what limits its step, and what would not help. Needs no torch.

    Args:
        path: A run directory that `ddptrace.trace` wrote, of a program with one data-parallel module.
        jobs: Number of processes that read the run.
        progress: Function to call after each rank, with the number of ranks done and the number of all.

    Returns:
        The best caps in MiB, with the predicted gain.

    Raises:
        RunDirectoryError: There is no such run.
        DdptraceError: The steps of the run cannot be replayed.
    """
    from ddptrace.analysis.whatif.advise import advise as advice_of

    return advice_of(predictor(path, jobs=jobs, progress=progress))


def forecast(path: AnyPath) -> Forecast:
    """Predict for a report: advice, and a simulation of many ranks; or the reason why there is none.

    Raises RunDirectoryError if there is no such run.
    """
    from ddptrace.analysis.whatif.answer import Forecast, forecast_of

    plan = open_run([run_path(path)])
    if len(plan.sources) > MOST_RANKS or sum(source.nbytes for source in plan.sources) > MOST_NBYTES:
        return Forecast(refusal=LARGE)
    try:
        ranks = _ranks(plan, 1, None)
        if max((len(step.sent) for one in ranks for step in one.steps), default=0) > MOST_BUCKETS:
            return Forecast(refusal=LARGE)
        return forecast_of(_predictor(ranks, plan))
    except RunDirectoryError:
        raise
    except DdptraceError as error:
        return Forecast(refusal=str(error))


def predictor(path: AnyPath, *, jobs: int = 1, progress: Progress | None = None) -> Predictor:
    """Make a predictor, which answers any number of questions about one run."""
    plan = open_run([run_path(path)])
    return _predictor(_ranks(plan, jobs, progress), plan)


def _predictor(ranks: Sequence[ObservedRank], plan: Plan) -> Predictor:
    from ddptrace.analysis.whatif.model import model_of
    from ddptrace.analysis.whatif.predict import Predictor

    return Predictor(model_of(ranks, plan.world_size))


def _ranks(plan: Plan, jobs: int, progress: Progress | None) -> list[ObservedRank]:
    ranks: list[ObservedRank] = []
    for observed in run_each(_observed, plan.sources, jobs=jobs, scheduler=None):
        ranks.append(observed)
        if progress is not None:
            progress(len(ranks), len(plan.sources))
    return ranks


def _observed(source: RankSource) -> ObservedRank:
    from ddptrace.analysis.whatif.observed import observe

    with uncollected():
        return observe(load_rank(source).run)
