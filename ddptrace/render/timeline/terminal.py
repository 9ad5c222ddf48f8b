"""Advice on a run whose buckets cannot be planned, in at most `WIDTH` columns of plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary, summarize
from ddptrace.analysis.timeline.advice import RunAdvice, RunLimit
from ddptrace.render.headline import headline, saving_words
from ddptrace.render.whatif.terminal import basis_lines, remedy_lines
from ddptrace.render.whatif.words import doubt_words, gain_range, interval_words
from ddptrace.render.words import WIDTH, indented
from ddptrace.units import duration


def run_advice_text(advice: RunAdvice, result: Result) -> str:
    """The whole advice, its lines ending in a newline. Its first sentence is that of `ddptrace analyze`."""
    summary = summarize(result)
    predictions = [limit.remedy for limit in advice.limits if limit.remedy is not None]
    sections = [
        textwrap.wrap(f"ddptrace advise · {headline(result, summary).text}", WIDTH),
        textwrap.wrap(doubt_words(advice.replay_error_ratio or 0.0), WIDTH),
        list(_limits(advice, result, summary)),
        list(remedy_lines("What else would help", advice.useful)),
        list(remedy_lines("What would not help", advice.useless)),
        textwrap.wrap(f"Nothing is predicted: {advice.refusal}." if advice.refusal else "", WIDTH),
        list(basis_lines((*predictions, *advice.useful, *advice.useless))),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _limits(advice: RunAdvice, result: Result, summary: Summary) -> Iterator[str]:
    yield f"What limits the typical step of {duration(advice.recorded_ns)} now"
    if not advice.limits:
        yield "  Nothing that ddptrace knows of."
    for limit in advice.limits:
        yield from indented(saving_words(limit.saving, result, summary))
        yield from _remedy(limit)


def _remedy(limit: RunLimit) -> Iterator[str]:
    one = limit.remedy
    if one is not None:
        told = f"{one.name}: {duration(one.step_ns)} ({interval_words(one)} ms), {gain_range(one)}"
        yield from textwrap.wrap(told, WIDTH, initial_indent="    ", subsequent_indent="      ")
