"""Sections of the report on advice and on many simulated ranks, with their figure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from ddptrace.analysis.whatif.advise import Advice
from ddptrace.analysis.whatif.answer import Forecast
from ddptrace.analysis.whatif.scale import ScaleRow
from ddptrace.analysis.whatif.tables import Prediction
from ddptrace.render.figures import Figure, axis, layout
from ddptrace.render.markup import section, table, text
from ddptrace.render.whatif.terminal import headline, limit_words
from ddptrace.render.whatif.words import SIMULATED, caps_words, doubt_words, gain_words, interval_words
from ddptrace.units import millis, signed_millis, signed_percent

MOST_PLANS = 6
COLOURS: Final = {"ring": "#41729f", "tree": "#7a9e59", "hierarchical": "#e4683a"}


def advice_section(forecast: Forecast) -> str:
    """What to change, what limits the step now, and which plans were compared, or why nothing is told; nothing where
    nobody asked."""
    if forecast.refusal is not None:
        why = forecast.refusal[:1].upper() + forecast.refusal[1:]
        return section("What to change", "Nothing is predicted.", f"<p>{text(why)}.</p>")
    return "" if forecast.advice is None else _advice(forecast.advice)


def _advice(advice: Advice) -> str:
    paste = f"DistributedDataParallel(model, {caps_words(advice.caps_mb)})" if advice.caps_mb else ""
    return section(
        "What to change",
        "Predicted from this run's gradient-ready times and fitted costs of a collective; nothing of it was measured.",
        f"<p>{escape(' '.join((headline(advice), doubt_words(advice.replay_error_ratio))))}</p>",
        f"<pre><code>{escape(paste)}</code></pre>" if paste else "",
        _limits(advice),
        _remedies("what else would help", advice.also_useful),
        _remedies("what would not help", advice.useless),
        _plans(advice),
        "".join(f"<p>{escape(line)}</p>" for line in advice.best.basis),
    )


def scaling_section(forecast: Forecast, picture: str) -> str:
    """`picture`: of many ranks; nothing where there is none."""
    sub = (
        f"{SIMULATED} The recorded links, with nobody else's traffic, and the recorded ranks' own times drawn by"
        " chance."
    )
    return section("On many ranks", sub, picture) if forecast.scale is not None else ""


def _limits(advice: Advice) -> str:
    rows = [
        [escape(limit_words(limit)), signed_millis(-limit.gain_ns), escape(signed_percent(-limit.gain_ratio))]
        for limit in advice.limits
    ]
    return table((("what limits the step now", ""), ("change ms", ""), ("change", "")), rows) if rows else ""


def _remedies(title: str, tried: Sequence[Prediction]) -> str:
    rows = [
        [escape(prediction.name), millis(prediction.step_ns), escape(gain_words(prediction))] for prediction in tried
    ]
    return table(((title, ""), ("step ms", ""), ("change", "")), rows) if rows else ""


def _plans(advice: Advice) -> str:
    """Without those that leave the buckets as they are."""
    recorded = advice.recorded
    others = [one for one in advice.tried if (one.step_ns, one.buckets) != (recorded.step_ns, recorded.buckets)]
    shown = sorted(others, key=lambda one: one.step_ns or 0)[:MOST_PLANS]
    heads = (("plan", ""), ("step ms", ""), ("between", ""), ("change", ""), ("buckets", ""))
    return table(heads, map(_cells, (recorded, *shown))) if shown else ""


def _cells(one: Prediction) -> list[str]:
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
    data = [_line(name, [row for row in rows if row.algorithm == name]) for name in COLOURS]
    across = axis("ranks", type="log", dtick=0.30103, tickformat=",d")
    shape = layout(xaxis=across, yaxis=axis("efficiency", tickformat=".0%", rangemode="tozero"))
    return Figure("scaling", 360, data, shape, "Efficiency: recorded compute alone, to the simulated step.")


def _line(name: str, rows: Sequence[ScaleRow]) -> dict[str, object]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"{name} (simulated)",
        "line": {"dash": "dot", "color": COLOURS[name]},
        "x": [row.ranks for row in rows],
        "y": [round(row.efficiency_ratio, 4) for row in rows],
    }
