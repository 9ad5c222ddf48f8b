"""The report's section of pipelines, as HTML."""

from __future__ import annotations

from typing import Final

from ddptrace.analysis.pipeline.digest import PARTS, PipelineDigest, RankTurn, pipeline_digests
from ddptrace.analysis.result import Result
from ddptrace.render.markup import section, table, text
from ddptrace.render.pipeline.terminal import HEADS, turn_words
from ddptrace.units import millis

ROWS_MAX: Final = 64
PIPELINES_MAX: Final = 8
SUB: Final = (
    "Where the time of each rank goes in a typical turn of the schedule, from the first computation of any stage to the"
    " last. A bubble is what the schedule implies; what a slow stage costs comes on top of it."
)
TABLE_HEADS: Final = (("rank", ""), ("stages", "words"), ("turn ms", ""), *((f"{head} ms", "") for head in HEADS))


def pipeline_section(result: Result, picture: str) -> str:
    digests = pipeline_digests(result)
    parts = [part for digest in digests[:PIPELINES_MAX] for part in _parts(digest)]
    some = f" The first {PIPELINES_MAX} of {len(digests):,} pipelines." if len(digests) > PIPELINES_MAX else ""
    return section("Pipelines", SUB + some, picture, *parts) if digests else ""


def _parts(digest: PipelineDigest) -> list[str]:
    some = f" The first {ROWS_MAX} of {len(digest.ranks):,} ranks." if len(digest.ranks) > ROWS_MAX else ""
    words = f"<p class='sub'>{text(turn_words(digest) + '.' + some)}</p>"
    return [words, table(TABLE_HEADS, map(_cells, digest.ranks[:ROWS_MAX]))]


def _cells(rank: RankTurn) -> list[str]:
    times = (rank.window_ns, *(getattr(rank, part) for part in PARTS))
    return [f"{rank.rank}", text(", ".join(map(str, rank.stages))), *map(millis, times)]
