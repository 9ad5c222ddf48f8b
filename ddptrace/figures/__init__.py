"""The report's pictures, one function each: from a result to a `plotly.graph_objects.Figure`, to show, change and save.

    result = ddptrace.analyze("run/")
    ddptrace.figures.timeline(result)

Each takes a result (`diff…`: a comparison) and `dark`, which draws it for a dark page. Each raises DdptraceError if the
run has nothing of the kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ddptrace.analysis.summary import measured_steps, summarize
from ddptrace.errors import DdptraceError
from ddptrace.figures.images import drawn, write_images
from ddptrace.render import figure as step_figures
from ddptrace.render.collectives import bandwidth_figure
from ddptrace.render.device import device_figures
from ddptrace.render.diff.sheet import diff_sheet
from ddptrace.render.diff.words import headline
from ddptrace.render.experts import expert_figure
from ddptrace.render.pipeline import pipeline_figure
from ddptrace.render.ranks.rank_figures import bucket_heat, jitter_heat, matches_figure, path_figure
from ddptrace.render.sheet_page import figure as chart_figure
from ddptrace.render.step_timeline import timeline_figure
from ddptrace.render.steps import steps_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

    from ddptrace.analysis.diff.tables import Diff
    from ddptrace.analysis.result import Result

__all__ = [
    "bandwidth",
    "buckets",
    "buckets_by_rank",
    "by_annotation",
    "by_module",
    "by_operator",
    "device",
    "diff",
    "diff_buckets",
    "diff_runs",
    "every",
    "experts",
    "jitter",
    "matches",
    "path",
    "phases",
    "pipeline",
    "ranks",
    "steps",
    "streams",
    "timeline",
    "write_images",
]


def timeline(result: Result, *, dark: bool = False) -> Figure:
    """Draw what each rank computed in a typical step, and the state of its buckets meanwhile."""
    return drawn("A typical step", timeline_figure(result), "no step was found", dark)


def buckets(result: Result, *, dark: bool = False) -> Figure:
    """Draw the communication of each bucket in the typical step: the hidden part and the exposed part."""
    figure = step_figures.buckets_figure(summarize(result))
    return drawn("Exposed time per bucket", figure, "no bucket has a known time of communication", dark)


def buckets_by_rank(result: Result, *, dark: bool = False) -> Figure:
    """Draw the exposed time of each bucket on each rank: one row per rank, one column per bucket."""
    why = "it needs at least two ranks and two buckets in typical steps"
    return drawn("Exposed time per bucket and rank", bucket_heat(result), why, dark)


def steps(result: Result, *, dark: bool = False) -> Figure:
    """Draw the breakdown of every step; with many ranks, their mean."""
    return drawn("Every step", steps_figure(result.steps), "no step was found", dark)


def ranks(result: Result, *, dark: bool = False) -> Figure:
    """Draw the breakdown of each rank's typical step."""
    figure = step_figures.parts_figure(measured_steps(result.steps)[0])
    return drawn("The typical step of each rank", figure, "no step was found", dark)


def phases(result: Result, *, dark: bool = False) -> Figure:
    """Draw the phases of each rank's typical step."""
    figure = step_figures.phases_figure(measured_steps(result.steps)[0])
    return drawn("Phases of the typical step", figure, "no step was found", dark)


def pipeline(result: Result, *, dark: bool = False) -> Figure:
    """Draw a turn of a pipeline's schedule: what each stage computed when."""
    why = "no turn of a pipeline is known whole"
    return drawn("The schedule of a pipeline", pipeline_figure(result), why, dark)


def path(result: Result, *, dark: bool = False) -> Figure:
    """Draw the critical path: the rank or transfer that everything waited for."""
    why = "the run has no critical path, which needs all ranks of a step"
    return drawn("What the run waited for", path_figure(result), why, dark)


def matches(result: Result, *, dark: bool = False) -> Figure:
    """Draw how far apart the ranks began and ended each collective."""
    why = "no collective was found on several ranks"
    return drawn("The same collective on all ranks", matches_figure(result), why, dark)


def jitter(result: Result, *, dark: bool = False) -> Figure:
    """Draw how much each phase of each rank varies from step to step."""
    return drawn(
        "What varies from step to step", jitter_heat(result), "there are too few steps to measure variation", dark
    )


def bandwidth(result: Result, *, dark: bool = False) -> Figure:
    """Draw the duration of collectives over the size of their messages."""
    why = "no collective has both a known duration and a known size"
    return drawn("Bandwidth over message size", bandwidth_figure(result), why, dark)


def experts(result: Result, *, dark: bool = False) -> Figure:
    """Draw how many bytes each rank sends to each other one, in the all-to-all that is most uneven."""
    why = "no all-to-all is known on all ranks of its group"
    return drawn("Who gets how much in all-to-alls", expert_figure(result), why, dark)


def device(result: Result, *, dark: bool = False) -> Figure:
    """Draw where the time of each rank's device went."""
    return drawn("Device time", device_figures.device_figure(result), "the run has no device work", dark)


def streams(result: Result, *, dark: bool = False) -> Figure:
    """Draw how busy each stream of the devices was."""
    return drawn("Streams", device_figures.streams_figure(result), "the run has no device work", dark)


def by_module(result: Result, *, dark: bool = False) -> Figure:
    """Draw device time by the module that launched the work."""
    return _scopes(result, "module", dark)


def by_annotation(result: Result, *, dark: bool = False) -> Figure:
    """Draw device time by the annotation around the launch."""
    return _scopes(result, "annotation", dark)


def by_operator(result: Result, *, dark: bool = False) -> Figure:
    """Draw device time by the operator that launched the work."""
    return _scopes(result, "operator", dark)


def _scopes(result: Result, kind: str, dark: bool) -> Figure:
    found = {figure.key: figure for figure in device_figures.scope_figures(result)}
    return drawn(
        f"Device time by {kind}", found.get(f"scopes-{kind}"), f"the run names no {kind} of its device work", dark
    )


FIGURES: Final[tuple[Callable[..., Figure], ...]] = (
    timeline,
    buckets,
    buckets_by_rank,
    steps,
    ranks,
    phases,
    matches,
    path,
    jitter,
    pipeline,
    experts,
    bandwidth,
    device,
    streams,
    by_module,
    by_annotation,
    by_operator,
)
"""In the order of the report."""


def every(result: Result, *, dark: bool = False) -> dict[str, Figure]:
    """Draw all figures that the run has data for. Returns them by the name of their function."""
    found = {}
    for draw in FIGURES:
        with contextlib.suppress(DdptraceError):
            found[draw.__name__] = draw(result, dark=dark)
    return found


def diff(found: Diff, *, dark: bool = False) -> Figure:
    """Draw where the change is: the step, its parts and phases, each with its 95 % interval."""
    return _diff(found, "Where the change is", dark)


def diff_buckets(found: Diff, *, dark: bool = False) -> Figure:
    """Draw how much longer each bucket communicates, and how much more exposed time is charged to it."""
    return _diff(found, "Buckets", dark)


def diff_runs(found: Diff, *, dark: bool = False) -> Figure:
    """Draw the typical step of each run, in the order in which they began."""
    return _diff(found, "Each run", dark)


def _diff(found: Diff, title: str, dark: bool) -> Figure:
    """Draw one chart of a comparison, with the sentence on the step as its caption."""
    told = (replace(one, caption=f"{headline(found)} {one.caption}".strip()) for one in diff_sheet(found).charts)
    drawings = {chart.title: chart_figure("diff", chart) for chart in told}
    return drawn(title, drawings.get(title), "the sides have no bucket in common", dark)
