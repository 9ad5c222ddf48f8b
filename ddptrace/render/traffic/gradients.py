"""What a reader is told of gradients: what was expected, what was seen, and why the two differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.traffic.gradients import GradientDigest
from ddptrace.errors import printable
from ddptrace.render.words import NOT_MEASURED, both_ends, calls_words, indented, percent, size

MOST_REDUCERS: Final = 8
SAME_RATIO: Final = 0.001
HEADS: Final = ("parameters", "backwards", "synchronised", "expected", "seen", "of it")
WIDTHS: Final = (11, 10, 13, 9, 9, 7)
EXPECTED: Final = "expected: all buckets, once per synchronised backward"


def gradient_lines(reducers: Sequence[GradientDigest]) -> Iterator[str]:
    if not reducers:
        return
    some = f"{MOST_REDUCERS} of {len(reducers)}; " if len(reducers) > MOST_REDUCERS else ""
    yield f"Gradients per rank and step  ({some}{EXPECTED})"
    yield f"  {'reducer':<35}{columns(HEADS)}"
    for one in reducers[:MOST_REDUCERS]:
        yield gradient_line(one)
    for one in reducers[:MOST_REDUCERS]:
        yield from indented(printable(why_words(one)))


def gradient_line(one: GradientDigest) -> str:
    return f"  {one.reducer:<3}{both_ends(printable(one.name), 32):<32}{columns(gradient_figures(one))}"


def columns(words: Sequence[str]) -> str:
    return "".join(f"{word:>{width}}" for word, width in zip(words, WIDTHS, strict=True))


def gradient_figures(one: GradientDigest) -> tuple[str, ...]:
    """Bytes of what buckets hold; backwards and those that synchronised; bytes expected, seen, and their ratio."""
    counts = calls_words(one.backwards), calls_words(one.synchronised)
    return size(one.gradient_nbytes), *counts, size(one.expected_nbytes), size(one.nbytes), percent(one.sent_ratio)


def why_words(one: GradientDigest) -> str:
    """Why the bytes seen are not those expected; nothing where they are."""
    name = f"Reducer {one.reducer}"
    hooks = ", ".join(one.hooks)
    if one.nbytes is None:
        return f"{name}: the hook {hooks} communicated by other means than collectives, so its bytes were not seen."
    if one.sent_ratio is None:
        return f"{name} sent nothing: none of its backwards was synchronised."
    if abs(one.sent_ratio - 1) <= SAME_RATIO:
        return ""
    told = f"{name} sent {percent(one.sent_ratio)} of its gradients' bytes"
    if one.hooks:
        return f"{told}: the hook {hooks} sends {' and '.join(one.dtypes) or NOT_MEASURED}."
    if one.sent_ratio < 1 and one.dtypes == one.parameter_dtypes:
        return f"{told}: in some backwards not all of its buckets were sent."
    return f"{told}, as {' and '.join(one.dtypes) or NOT_MEASURED}."
