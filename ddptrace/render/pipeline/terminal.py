"""What the terminal says of pipelines: where each rank's time goes in a turn of the schedule."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.pipeline.digest import PARTS, PipelineDigest, pipeline_digests
from ddptrace.analysis.result import Result
from ddptrace.render.words import WIDTH
from ddptrace.units import counted, duration, millis, percent

MOST_PIPELINES: Final = 2
MOST_RANKS: Final = 8
HEADS: Final = ("compute", "bubble", "slow stage", "transfer", "other")
"""Of `PARTS`."""


def pipeline_lines(result: Result) -> Iterator[str]:
    """Nothing where no turn of a pipeline is known whole."""
    digests = pipeline_digests(result)
    for digest in digests[:MOST_PIPELINES]:
        number = f" {digest.pipeline}" if len(digests) > 1 else ""
        yield from textwrap.wrap(f"Pipeline{number}  {turn_words(digest)}", WIDTH, subsequent_indent="  ")
        yield f"  {'rank':<6} {'stages':<10}" + "".join(f" {head + ' ms':>13}" for head in HEADS)
        for rank in digest.ranks[:MOST_RANKS]:
            parts = "".join(f" {millis(getattr(rank, part)):>13}" for part in PARTS)
            yield f"  {rank.rank:<6} {', '.join(map(str, rank.stages)):<10}{parts}"
        if len(digest.ranks) > MOST_RANKS:
            yield f"  … and {len(digest.ranks) - MOST_RANKS} more ranks in the table `bubbles`"
    if len(digests) > MOST_PIPELINES:
        yield f"  … and {len(digests) - MOST_PIPELINES} more pipelines in the report"


def turn_words(digest: PipelineDigest) -> str:
    microbatches = counted(digest.microbatches, "microbatch", "microbatches")
    return (
        f"{digest.schedule} · {counted(digest.stages, 'stage')} · {microbatches} · turn {duration(digest.window_ns)}"
        f" (mean of {digest.turns}), bubble {percent(digest.bubble_ns / digest.window_ns)}; with equal stages and free"
        f" messages {duration(digest.ideal_window_ns)}, bubble"
        f" {percent(digest.ideal_bubble_ns / digest.ideal_window_ns if digest.ideal_window_ns else None)}"
    )
