"""`ddptrace.whatif` and `ddptrace.advise`: what other settings would make of a recorded run. Where load, analysis and
the engine meet once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddptrace.analyzer import AnyPath, Progress, uncollected
from ddptrace.engine import run_each
from ddptrace.load.run import RankSource, load_rank, open_run
from ddptrace.schema import run_path

if TYPE_CHECKING:
    from ddptrace.analysis.whatif.advise import Advice
    from ddptrace.analysis.whatif.observed import ObservedRank
    from ddptrace.analysis.whatif.predict import Predictor
    from ddptrace.analysis.whatif.tables import Setting, WhatIf


def whatif(
    path: AnyPath, settings: Mapping[str, Setting], *, jobs: int = 1, progress: Progress | None = None
) -> WhatIf:
    """What each of these settings would make of the step, by name.

    Args:
        path: a run directory that `ddptrace.trace` wrote, of a program with one data-parallel module.
        settings: what is asked, as in {"small buckets": ddptrace.Setting(caps_mb=(1,))}.
        jobs: processes that read the run.
        progress: called after each rank.

    Needs no torch. Raises RunDirectoryError where there is no such run, and DdptraceError where its steps cannot be
    played again. A setting of which the run cannot tell is no error: its prediction says why.
    """
    from ddptrace.analysis.whatif.answer import answer

    return answer(predictor(path, jobs=jobs, progress=progress), settings)


def advise(path: AnyPath, *, jobs: int = 1, progress: Progress | None = None) -> Advice:
    """The best bucket sizes, what limits the step now, and what would not help. Arguments and errors as `whatif`."""
    from ddptrace.analysis.whatif.advise import advise as advice_of

    return advice_of(predictor(path, jobs=jobs, progress=progress))


def predictor(path: AnyPath, *, jobs: int = 1, progress: Progress | None = None) -> Predictor:
    """Answers any number of questions about one run."""
    from ddptrace.analysis.whatif.model import model_of
    from ddptrace.analysis.whatif.predict import Predictor

    plan = open_run([run_path(path)])
    ranks = []
    for observed in run_each(_observed, plan.sources, jobs=jobs, scheduler=None):
        ranks.append(observed)
        if progress is not None:
            progress(len(ranks), len(plan.sources))
    return Predictor(model_of(ranks, plan.world_size))


def _observed(source: RankSource) -> ObservedRank:
    from ddptrace.analysis.whatif.observed import observe

    with uncollected():
        return observe(load_rank(source).run)
