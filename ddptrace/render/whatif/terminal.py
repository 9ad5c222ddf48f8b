"""Answers to what-if questions, in at most `WIDTH` columns of plain text."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator

from ddptrace.analysis.whatif.tables import Prediction, WhatIf
from ddptrace.render.whatif.words import (
    contention_words,
    cost_words,
    doubt_words,
    gain_words,
    interval_words,
    replay_words,
)
from ddptrace.render.words import WIDTH, indented
from ddptrace.units import counted, millis

NAME_WIDTH = 34


def whatif_text(found: WhatIf) -> str:
    """The whole answer, its lines ending in a newline."""
    sections = [
        [f"ddptrace what if · {counted(found.ranks, 'rank')} · {counted(found.steps, 'step')}"],
        textwrap.wrap(replay_words(found), WIDTH),
        textwrap.wrap(doubt_words(found.replay_error_ratio), WIDTH),
        list(_table(found)),
        list(_refused(found)),
        ["What this rests on", *indented(cost_words(found.cost)), *indented(contention_words(found.contention))],
        list(_basis(found)),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _table(found: WhatIf) -> Iterator[str]:
    answered = [one for one in found.predictions if one.refusal is None]
    if not answered:
        return
    yield f"{'If':<{NAME_WIDTH + 2}} {'step ms':>9} {'between':>18} {'change':>7} {'exposed ms':>11} {'buckets':>8}"
    for prediction in (found.replayed, *answered):
        yield _prediction_line(prediction)
    if any(one.setting.accumulate for one in answered):
        yield from indented("change: of the time for each backward, where several make an update")


def _prediction_line(one: Prediction) -> str:
    lines = textwrap.wrap(one.name, NAME_WIDTH) or [""]
    figures = f"{millis(one.step_ns):>9} {interval_words(one):>18} {gain_words(one):>7} {millis(one.exposed_ns):>11}"
    first = f"  {lines[0]:<{NAME_WIDTH}} {figures} {one.buckets if one.buckets else '-':>8}"
    return "\n".join((first, *(f"  {line}" for line in lines[1:])))


def _refused(found: WhatIf) -> Iterator[str]:
    refused = [prediction for prediction in found.predictions if prediction.refusal is not None]
    if refused:
        yield "What this run cannot tell"
        for one in refused:
            yield from textwrap.wrap(
                f"{one.name}: {one.refusal}.", WIDTH, initial_indent="  ", subsequent_indent="    "
            )


def _basis(found: WhatIf) -> Iterator[str]:
    """Each line once, with the answers that it is about where it is not all of them."""
    answered = [one for one in found.predictions if one.refusal is None]
    about: dict[str, list[str]] = defaultdict(list)
    for prediction in answered:
        for line in prediction.basis:
            about[line].append(prediction.name)
    if about:
        yield "Before you rely on this"
    for line, names in about.items():
        yield from indented(line if len(names) == len(answered) else f"{line} ({'; '.join(names)})")
