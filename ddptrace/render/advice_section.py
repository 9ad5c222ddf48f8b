"""Advice as a section of the report."""

from __future__ import annotations

from html import escape

from ddptrace.analysis.whatif.advise import Advice
from ddptrace.analysis.whatif.tables import Prediction
from ddptrace.render.markup import section, table
from ddptrace.render.whatif_advice import headline, limit_words
from ddptrace.render.whatif_words import caps_words, gain_words, interval_words
from ddptrace.render.words import millis, percent

MOST_PLANS = 6


def advice_section(advice: Advice | None) -> str:
    """What to change, what limits the step now, and which plans were compared; nothing without advice."""
    if advice is None:
        return ""
    paste = f"DistributedDataParallel(model, {caps_words(advice.caps_mb)})" if advice.caps_mb else ""
    return section(
        "What to change",
        "Predicted from this run's gradient-ready times and fitted costs of a collective; nothing of it was measured.",
        f"<p>{escape(headline(advice))}</p>",
        f"<pre><code>{escape(paste)}</code></pre>" if paste else "",
        _limits(advice),
        _plans(advice),
        "".join(f"<p>{escape(line)}</p>" for line in advice.best.basis),
    )


def _limits(advice: Advice) -> str:
    rows = [[escape(limit_words(one)), millis(one.gain_ns), escape(percent(one.gain_ratio))] for one in advice.limits]
    return table((("what limits the step now", ""), ("would win ms", ""), ("of step", "")), rows) if rows else ""


def _plans(advice: Advice) -> str:
    shown = sorted(advice.tried, key=lambda one: one.step_ns or 0)[:MOST_PLANS]
    heads = (("plan", ""), ("step ms", ""), ("between", ""), ("change", ""), ("buckets", ""))
    return table(heads, map(_cells, (advice.recorded, *shown)))


def _cells(one: Prediction) -> list[str]:
    return [
        f"<code>{escape(one.name)}</code>", millis(one.step_ns), escape(interval_words(one)), escape(gain_words(one)),
        str(one.buckets or ""),
    ]  # fmt: skip
