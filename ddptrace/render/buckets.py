"""The report's table of buckets, as HTML, and how a bucket is linked to where it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from ddptrace.analysis.summary import BucketSummary, Summary
from ddptrace.render.markup import Heads, folded, label, slug
from ddptrace.render.words import bucket_numbers, hidden_words
from ddptrace.units import counted, millis, percent, size

TYPICAL: Final = "A typical step"
"""Title of the section that draws buckets on a time line."""
ROWS_OPEN: Final = 10
ROWS_MAX: Final = 200
PARAMETERS_OPEN_MAX: Final = 2
PARAMETERS_MAX: Final = 100
NAMES: Final = ("parameters", "names")
HEADS: Final[Heads] = (
    ("bucket", ""), ("exposed ms", ""), ("of step", ""), ("comm ms", ""), ("hidden", ""), ("queue ms", ""),
    ("size", ""), NAMES, ("evidence", ""),
)  # fmt: skip


def named(buckets: Sequence[BucketSummary]) -> list[tuple[str, BucketSummary]]:
    return [(f"bucket {number}", bucket) for number, bucket in zip(bucket_numbers(buckets), buckets, strict=True)]


def bucket_link(name: str, bucket: BucketSummary) -> str:
    """To the bucket on the time line, which then shows the part where it ran."""
    return f'<a href="#{slug(TYPICAL)}" data-bucket="{drawn_as(bucket)}">{escape(name)}</a>'


def drawn_as(bucket: BucketSummary) -> str:
    """What marks the bucket's bars on the time line, in `customdata`."""
    return f"{bucket.reducer} {bucket.layout} {bucket.index}"


def bucket_table(summary: Summary) -> str:
    """Without the column of parameters where nothing names them."""
    rows = [bucket_cells(name, bucket) for name, bucket in named(summary.buckets)[:ROWS_MAX]]
    if not rows:
        return ""
    heads, at = HEADS, HEADS.index(NAMES)
    if not any(bucket.parameters for bucket in summary.buckets):
        heads, rows = (*HEADS[:at], *HEADS[at + 1 :]), [row[:at] + row[at + 1 :] for row in rows]
    unseen = len(summary.buckets) - len(rows)
    rest = "buckets" + (f"; {counted(unseen, 'less exposed one')} stand in analysis.json" if unseen else "")
    return folded(heads, rows, ROWS_OPEN, rest)


def bucket_cells(name: str, bucket: BucketSummary) -> list[str]:
    return [
        bucket_link(name, bucket),
        millis(bucket.exposed_charged_ns),
        escape(percent(bucket.step_ratio)),
        millis(bucket.comm_ns),
        escape(hidden_words(bucket.hidden_ns, bucket.comm_ns)),
        millis(bucket.queue_ns),
        size(bucket.nbytes),
        parameters_html(bucket.parameters),
        escape(bucket.evidence or "not measured"),
    ]


def parameters_html(names: Sequence[str]) -> str:
    """The first and the last in the open, and all that a reader may want to look for folded away."""
    if len(names) <= PARAMETERS_OPEN_MAX:
        return codes(names)
    rest = f" … {len(names) - PARAMETERS_MAX:,} more" if len(names) > PARAMETERS_MAX else ""
    ends = f"{codes(names[:1])} … {codes(names[-1:])}"
    return f"<details><summary>{ends} ({len(names):,})</summary>{codes(names[:PARAMETERS_MAX])}{rest}</details>"


def codes(names: Sequence[str]) -> str:
    return ", ".join(f"<code>{label(name)}</code>" for name in names)
