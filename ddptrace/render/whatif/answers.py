"""Answers to what-if questions, advice and simulated ranks: as text for the terminal, and as sections of the report."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import WORTH_RATIO, Summary, summarize
from ddptrace.analysis.timeline.advice import RunAdvice, RunLimit
from ddptrace.analysis.whatif.advise import Advice, Limit, Verification
from ddptrace.analysis.whatif.answer import Forecast, ScaleRow
from ddptrace.analysis.whatif.tables import Prediction, WhatIf
from ddptrace.render.figure import Figure, axis, layout
from ddptrace.render.headline import headline, saving_words
from ddptrace.render.markup import section, table, text
from ddptrace.render.whatif.words import (
    SIMULATED,
    caps_words,
    contention_words,
    cost_words,
    doubt_words,
    gain_range,
    gain_words,
    interval_words,
    replay_words,
    setting_words,
)
from ddptrace.render.words import WIDTH, indented
from ddptrace.units import counted, duration, millis, percent, signed_millis, signed_percent, signed_tenths, size

NAME_WIDTH: Final = 34
MOST_PLANS: Final = 6
TRY_BOTH: Final = (
    "The machine may be busier than when the run was recorded: `ddptrace diff --repeat` runs the old and the new caps"
    " in turns."
)
COLOURS: Final = {"ring": "#41729f", "tree": "#7a9e59", "hierarchical": "#e4683a"}


def run_advice_text(advice: RunAdvice, result: Result) -> str:
    """The whole advice, its lines ending in a newline. Its first sentence is that of `ddptrace analyze`."""
    summary = summarize(result)
    predictions = [limit.remedy for limit in advice.limits if limit.remedy is not None]
    sections = [
        textwrap.wrap(f"ddptrace advise · {headline(result, summary).text}", WIDTH),
        textwrap.wrap(doubt_words(advice.replay_error_ratio or 0.0), WIDTH),
        list(_units(advice)),
        list(_run_limits(advice, result, summary)),
        list(_remedy_lines("What else would help", advice.useful)),
        list(_remedy_lines("What would not help", advice.useless)),
        textwrap.wrap(f"Nothing is predicted: {advice.refusal}." if advice.refusal else "", WIDTH),
        list(_basis_lines((*predictions, *advice.useful, *advice.useless))),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _units(advice: RunAdvice) -> Iterator[str]:
    """What to paste, with what it wins and the memory that it takes."""
    best, recorded = advice.best, advice.recorded
    if best is None or recorded is None:
        return
    told = (
        f"Take {setting_words(best.setting)}: {gain_range(best)}, a step of {duration(best.step_ns)}"
        f" ({interval_words(best)} ms). Shards, gathered units and gradients of a rank then take"
        f" {size(best.peak_nbytes)} at most, and {size(recorded.peak_nbytes)} now. Keep the other arguments of your"
        " calls of fully_shard."
    )
    yield from textwrap.wrap(told, WIDTH)
    yield ""
    for line in advice.calls:
        indent = "  " + " " * (len(line) - len(line.lstrip()))
        yield from textwrap.wrap(line.lstrip(), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ")


def _run_limits(advice: RunAdvice, result: Result, summary: Summary) -> Iterator[str]:
    yield f"What limits the typical step of {duration(advice.recorded_ns)} now"
    if not advice.limits:
        yield from indented(f"No cause that ddptrace can tell costs {percent(WORTH_RATIO)} of it or more.")
    for limit in advice.limits:
        yield from indented(saving_words(limit.saving, result, summary))
        yield from _run_remedy(limit)


def _run_remedy(limit: RunLimit) -> Iterator[str]:
    one = limit.remedy
    if one is not None:
        told = f"{one.name}: {duration(one.step_ns)} ({interval_words(one)} ms), {gain_range(one)}"
        yield from textwrap.wrap(told, WIDTH, initial_indent="    ", subsequent_indent="      ")


def whatif_text(found: WhatIf) -> str:
    """The whole answer, its lines ending in a newline."""
    sections = [
        [f"ddptrace what if · {counted(found.ranks, 'rank')} · {counted(found.steps, 'step')}"],
        textwrap.wrap(replay_words(found), WIDTH),
        textwrap.wrap(doubt_words(found.replay_error_ratio), WIDTH),
        list(_answers(found)),
        list(_refusals(found)),
        list(_fits(found)),
        list(_basis_lines(found.predictions)),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _answers(found: WhatIf) -> Iterator[str]:
    answered = [one for one in found.predictions if one.refusal is None]
    if not answered:
        return
    last = "peak MB" if found.model == "units" else "buckets"
    yield f"{'If':<{NAME_WIDTH + 2}} {'step ms':>9} {'between':>18} {'change':>7} {'exposed ms':>11} {last:>8}"
    for prediction in (found.replayed, *answered):
        yield _prediction_line(prediction)
    if found.model != "pipeline":
        yield from indented("exposed: waiting for late ranks counts, whatever the network")
    if found.model == "units":
        yield from indented("peak: shards, gathered units and gradients of one rank, without activations and optimizer")
    if any(one.setting.microbatches for one in answered):
        yield from indented("change: of the time for each microbatch")
    if any(one.setting.accumulate for one in answered):
        yield from indented("change: of the time for each backward, where several make an update")


def _prediction_line(one: Prediction) -> str:
    lines = textwrap.wrap(one.name, NAME_WIDTH) or [""]
    figures = f"{millis(one.step_ns):>9} {interval_words(one):>18} {gain_words(one):>7} {millis(one.exposed_ns):>11}"
    last = f"{one.buckets if one.buckets else '-'}" if one.peak_nbytes is None else f"{one.peak_nbytes / 1e6:,.1f}"
    first = f"  {lines[0]:<{NAME_WIDTH}} {figures} {last:>8}"
    return "\n".join((first, *(f"  {line}" for line in lines[1:])))


def _refusals(found: WhatIf) -> Iterator[str]:
    refused = [prediction for prediction in found.predictions if prediction.refusal is not None]
    if refused:
        yield "What this run cannot tell"
        names: dict[str, list[str]] = defaultdict(list)
        for one in refused:
            names[one.refusal or ""].append(one.name)
        for why, about in names.items():
            yield from textwrap.wrap(
                f"{', '.join(about)}: {why}.", WIDTH, initial_indent="  ", subsequent_indent="    "
            )


def _fits(found: WhatIf) -> Iterator[str]:
    if found.cost is not None and found.contention is not None:
        yield "What this rests on"
        yield from indented(cost_words(found.cost))
        yield from indented(contention_words(found.contention))


def _basis_lines(predictions: Iterable[Prediction]) -> Iterator[str]:
    lines = _basis(predictions)
    if lines:
        yield "Before you rely on this"
    for line in lines:
        yield from indented(line)


def _basis(predictions: Iterable[Prediction]) -> list[str]:
    """Each sentence once, with the answers that it is about where it is not all of them."""
    answered = [one for one in predictions if one.refusal is None]
    about: dict[str, list[str]] = defaultdict(list)
    for prediction in answered:
        for line in prediction.basis:
            about[line].append(prediction.name)
    every = len(answered)
    return [line if len(names) == every else f"{line} ({'; '.join(names)})" for line, names in about.items()]


def advice_text(advice: Advice, result: Result) -> str:
    """The whole advice, its lines ending in a newline. Its first sentence is that of `ddptrace analyze`."""
    sections = [
        textwrap.wrap(f"ddptrace advise · {headline(result, summarize(result)).text}", WIDTH),
        textwrap.wrap(advice_headline(advice), WIDTH),
        [f"  {line}" for line in _paste(advice)],
        textwrap.wrap(doubt_words(advice.replay_error_ratio), WIDTH),
        list(_limits(advice)),
        list(_remedy_lines("What else would help", advice.also_useful)),
        list(_remedy_lines("What would not help", advice.useless)),
        list(_tried(advice)),
        [line for basis in advice.best.basis for line in indented(basis)],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def advice_headline(advice: Advice) -> str:
    """What to do: about a rank that is worth more than all buckets first, then about the buckets."""
    return " ".join(filter(None, (_rank_words(advice), _bucket_words(advice))))


def _rank_words(advice: Advice) -> str:
    rank = advice.first_rank
    if rank is None:
        return ""
    return (
        f"Make rank {rank.setting.even} as fast as the others: {gain_range(rank)}, a step of"
        f" {duration(rank.step_ns)}, which no bucket size reaches."
    )


def _bucket_words(advice: Advice) -> str:
    if not advice.caps_mb:
        return (
            "Keep the buckets as they are: no others are predicted to shorten the step of"
            f" {duration(advice.recorded_ns)} by enough to matter."
        )
    caps, sure = caps_words(advice.caps_mb), advice.is_sure
    take = f"Take {caps}" if sure else f"No cap is surely better; {caps} is the best guess"
    return (
        f"{take}: {gain_range(advice.best)}. The same model predicts"
        f" {duration(advice.best.step_ns)} ({interval_words(advice.best)} ms) for it and"
        f" {duration(advice.recorded.step_ns)} for the run as it was, which took {duration(advice.recorded_ns)}."
        f"{'' if sure else ' Measure it, as with --verify.'}"
    )


def in_short(forecast: Forecast) -> list[str]:
    """For the end of a summary: what to take, where that is sure to win."""
    advice = forecast.advice
    if advice is None or not advice.is_sure:
        return []
    step = f"{duration(advice.best.step_ns)}, {gain_range(advice.best)}"
    told = f"Take {caps_words(advice.caps_mb)}: predicted is a step of {step}."
    return textwrap.wrap(f"{told} `ddptrace advise` explains the prediction.", WIDTH)


def _paste(advice: Advice) -> Iterator[str]:
    """What to put into the program; nothing where the buckets are to stay."""
    if advice.caps_mb:
        yield f"DistributedDataParallel(model, {caps_words(advice.caps_mb)})"


def _limit_words(limit: Limit) -> str:
    """What the step would be without."""
    named = {
        "transfer": "exposed communication: with a network that takes no time",
        "buckets": "waiting for gradients: if all buckets were sent as backward begins",
        "bandwidth": "bandwidth of the link: if it were twice as high",
        "latency": "latency of a collective: if it were zero",
        "straggler": f"rank {limit.rank}: if it were as fast as the others",
        "contention": "communication slows compute: if it did not",
    }
    return named[limit.name]


def _limits(advice: Advice) -> Iterator[str]:
    yield "What limits the step now"
    if not advice.limits:
        yield "  Neither the buckets nor the network nor a single rank by enough to matter."
    for limit in advice.limits:
        change = f"{signed_millis(-limit.gain_ns):>9} ms {signed_percent(-limit.gain_ratio):>6}"
        yield f"  {change}  {_limit_words(limit)}"


def _remedy_lines(title: str, tried: Sequence[Prediction]) -> Iterator[str]:
    if tried:
        yield title
        for one in tried:
            yield f"  {one.name}: {duration(one.step_ns)} ({gain_words(one)})"


def _tried(advice: Advice) -> Iterator[str]:
    shown = sorted(advice.tried, key=lambda one: one.step_ns or 0)[:MOST_PLANS]
    yield "Predicted for the recorded buckets"
    yield _plan_line(advice.recorded)
    yield ""
    yield f"The best {len(shown)} of {counted(advice.plans, 'plan')}"
    yield from map(_plan_line, shown)


def _plan_line(one: Prediction) -> str:
    return f"  {millis(one.step_ns):>9} ms  {interval_words(one):>18}  {_plan_name(one)}"


def _plan_name(one: Prediction) -> str:
    return textwrap.shorten(f"{one.name} ({counted(one.buckets or 0, 'bucket')})", WIDTH - 36)


def verification_text(verdict: Verification) -> str:
    """What came of it, its lines ending in a newline."""
    head = "Verified" if verdict.is_within else "Not confirmed"
    held = "within the interval." if verdict.is_within else f"outside of the interval. {TRY_BOTH}"
    told = (
        f"{head}: {duration(verdict.predicted_ns)} was predicted, and {counted(verdict.steps, 'step')} took"
        f" {duration(verdict.measured_ns)} in the median ({signed_tenths(verdict.error_ratio)}), {held}"
    )
    if verdict.unlike is not None:
        told = f"Not verified: {verdict.unlike}. Does it give its DistributedDataParallel the caps in {{caps}}?"
    return "\n".join(textwrap.wrap(told, WIDTH)) + "\n"


def scale_lines(rows: Sequence[ScaleRow], setting: str, per_host: int) -> Iterator[str]:
    """A row for each number of ranks. `setting`: in words."""
    yield f"On many ranks, {setting}: step ms, efficiency, jitter ms   ({SIMULATED})"
    names = list(dict.fromkeys(row.algorithm for row in rows))
    yield f"  {'ranks':>6}" + "".join(f"  {name:>26}" for name in names)
    for ranks in dict.fromkeys(row.ranks for row in rows):
        yield f"  {ranks:>6,}" + "".join(f"  {_scale_cell(row):>26}" for row in rows if row.ranks == ranks)
    yield f"  hierarchical: {per_host} ranks share a link; efficiency: recorded compute alone, to the step"
    yield "  jitter: time added because the slowest rank sets the pace; --ranks leaves it out"


def _scale_cell(row: ScaleRow) -> str:
    return f"{millis(row.step_ns):>9} {percent(row.efficiency_ratio):>6} {millis(row.jitter_ns):>8}"


def advice_section(forecast: Forecast) -> str:
    """What to change, what limits the step now, and which plans were compared, or why nothing is told; nothing where
    nobody asked."""
    if forecast.refusal is not None:
        why = forecast.refusal[:1].upper() + forecast.refusal[1:]
        return section("What to change", "Nothing is predicted.", f"<p>{text(why)}.</p>")
    if forecast.of_device is not None:
        return _of_device_html(forecast.of_device)
    return "" if forecast.advice is None else _advice_html(forecast.advice)


def _of_device_html(advice: RunAdvice) -> str:
    """What would help, and what would not."""
    remedies = [limit.remedy for limit in advice.limits if limit.remedy is not None]
    doubt = doubt_words(advice.replay_error_ratio or 0.0)
    basis = _basis((*remedies, *advice.useful, *advice.useless))
    return section(
        "What to change",
        "Predicted by playing the profiled steps again; nothing of it was measured.",
        f"<p>{escape(doubt)}</p>" if doubt else "",
        _remedies_table("what would help", (*remedies, *advice.useful)),
        _remedies_table("what would not help", advice.useless),
        "".join(f"<p>{text(line)}</p>" for line in basis),
    )


def _advice_html(advice: Advice) -> str:
    return section(
        "What to change",
        "Predicted from this run's gradient-ready times and fitted costs of a collective; nothing of it was measured.",
        f"<p>{escape(' '.join((advice_headline(advice), doubt_words(advice.replay_error_ratio))))}</p>",
        *(f"<pre><code>{escape(line)}</code></pre>" for line in _paste(advice)),
        _limits_table(advice),
        _remedies_table("what else would help", advice.also_useful),
        _remedies_table("what would not help", advice.useless),
        _plans_table(advice),
        "".join(f"<p>{escape(line)}</p>" for line in advice.best.basis),
    )


def scaling_section(forecast: Forecast, picture: str) -> str:
    """`picture`: of many ranks; nothing where there is none."""
    sub = (
        f"{SIMULATED} The recorded links, with nobody else's traffic, and the recorded ranks' own times drawn by"
        " chance."
    )
    return section("On many ranks", sub, picture) if forecast.scale is not None else ""


def _limits_table(advice: Advice) -> str:
    rows = [
        [escape(_limit_words(limit)), signed_millis(-limit.gain_ns), escape(signed_percent(-limit.gain_ratio))]
        for limit in advice.limits
    ]
    return table((("what limits the step now", ""), ("change ms", ""), ("change", "")), rows) if rows else ""


def _remedies_table(title: str, tried: Sequence[Prediction]) -> str:
    rows = [
        [escape(one.name), millis(one.step_ns), escape(interval_words(one)), escape(gain_words(one))] for one in tried
    ]
    return table(((title, ""), ("step ms", ""), ("between", ""), ("change", "")), rows) if rows else ""


def _plans_table(advice: Advice) -> str:
    """Without those that leave the buckets as they are."""
    recorded = advice.recorded
    others = [one for one in advice.tried if (one.step_ns, one.buckets) != (recorded.step_ns, recorded.buckets)]
    shown = sorted(others, key=lambda one: one.step_ns or 0)[:MOST_PLANS]
    heads = (("plan", ""), ("step ms", ""), ("between", ""), ("change", ""), ("buckets", ""))
    return table(heads, map(_plan_cells, (recorded, *shown))) if shown else ""


def _plan_cells(one: Prediction) -> list[str]:
    return [
        f"<code>{escape(one.name)}</code>",
        millis(one.step_ns),
        escape(interval_words(one)),
        escape(gain_words(one)),
        str(one.buckets or ""),
    ]


def scaling_figure(rows: Sequence[ScaleRow]) -> Figure | None:
    """Efficiency over ranks, a line for each algorithm."""
    if not rows:
        return None
    data = [_scaling_line(name, [row for row in rows if row.algorithm == name]) for name in COLOURS]
    across = axis("ranks", type="log", dtick=0.30103, tickformat=",d")
    shape = layout(xaxis=across, yaxis=axis("efficiency", tickformat=".0%", rangemode="tozero"))
    return Figure("scaling", 360, data, shape, "Efficiency: recorded compute alone, to the simulated step.")


def _scaling_line(name: str, rows: Sequence[ScaleRow]) -> dict[str, object]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"{name} (simulated)",
        "line": {"dash": "dot", "color": COLOURS[name]},
        "x": [row.ranks for row in rows],
        "y": [round(row.efficiency_ratio, 4) for row in rows],
    }
