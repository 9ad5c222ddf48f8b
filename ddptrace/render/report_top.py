"""What stands at the top of the report, as HTML: the run, the answer in a number and words, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from ddptrace.analysis.device.digest import device_parts
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketSummary, Share, Summary, WindowSummary
from ddptrace.analysis.tables.device import Population
from ddptrace.render.buckets import bucket_link, named
from ddptrace.render.headline import headline
from ddptrace.render.markup import label, text
from ddptrace.render.rpc.words import remote_words, split_parts
from ddptrace.render.windows import overlap_words, title_words
from ddptrace.render.words import (
    EVIDENCE,
    PARTS,
    all_steps_words,
    compute_words,
    divided_words,
    parallelism_words,
    read_words,
)
from ddptrace.units import counted, duration, instant, percent

FIRST_DATE_UNIX_NS: Final = 10**18  # September 2001


def headline_html(result: Result, summary: Summary) -> str:
    top = headline(result, summary)
    step = f'<p class="first-step">First step: {text(top.first_step)}.</p>' if top.first_step else ""
    return (
        f'<h1><span class="number{" calm" if top.calm else ""}">{escape(top.number)}</span> '
        f'<span class="words">{text(top.words)}</span></h1>{step}'
    )


def evidence_line(summary: Summary) -> str:
    """What the number is, and what it rests on."""
    exposed = summary.part("exposed_comm")
    if exposed is None or not summary.comm_ns or summary.evidence is None:
        return ""
    told = (
        f"{duration(exposed.ns)} is how long communication runs and nothing is computed beside it: an upper bound,"
        " since what is launched last has little left to hide behind. Mean of"
        f" {counted(summary.steps, 'rank-step')}, {summary.population}; evidence {summary.evidence}:"
        f" {EVIDENCE[summary.evidence]}.{compute_words(summary)}"
    )
    return f'<p class="evidence">{escape(told)}</p>'


def lead(summary: Summary) -> str:
    typical = summary.typical
    if typical is None:
        return ""
    on_device = duration(typical.wall_ns) != duration(typical.window_ns)
    apart = f" on the device ({duration(typical.wall_ns)} on the host)" if on_device else ""
    beside = "; ".join(filter(None, (all_steps_words(summary), divided_words(summary))))
    beside = f" ({beside})" if beside else ""
    said = [escape(f"The typical step takes {duration(typical.window_ns)}{apart}{beside}.")]
    if summary.comm_ns:
        hidden = escape(percent(summary.overlap_ratio))
        said.append(f"It communicates for {duration(summary.comm_ns)}, {hidden} of it behind compute.")
    remote = remote_words(summary)
    if remote is not None:
        said.append(escape(remote))
    if summary.worst is not None:
        said.append(worst_html(summary, summary.worst))
    return f'<p class="lead">{" ".join(said)}</p>'


def window_lead(window: WindowSummary) -> str:
    """Of a run without steps."""
    told = f"{title_words(window)}. {overlap_words(window)}"
    return f'<p class="lead">{escape(told)}</p>'


def worst_html(summary: Summary, worst: BucketSummary) -> str:
    name = next(name for name, bucket in named(summary.buckets) if bucket is worst)
    holds = f", the one with {label(worst.parameters[-1])}" if worst.parameters else ""
    return f"The most exposed is {bucket_link(name, worst)}{holds}: {duration(worst.exposed_charged_ns)} per step."


def strip(summary: Summary, device: Population | None) -> str:
    """The typical step, or without steps the devices' time, as one bar, and its key."""
    shown = split_parts(summary) or (device_parts(device) if device is not None else ())
    return parts_strip(shown)


def parts_strip(shown: Sequence[Share]) -> str:
    parts = [part for part in shown if part.ratio > 0]
    pieces = "".join(f'<i class="{part.name}" style="flex:{part.ratio:.6f}"></i>' for part in parts)
    bar = f'<div class="strip" role="img" aria-label="where the time goes">{pieces}</div>'
    return f'{bar}<ul class="key">{"".join(map(key_html, parts))}</ul>' if parts else ""


def key_html(part: Share) -> str:
    figures = f"<span>{duration(part.ns)} · {escape(percent(part.ratio))}</span>"
    return f'<li><i class="{part.name}"></i>{PARTS[part.name]} {figures}</li>'


def run_line(result: Result) -> str:
    """Without a date where the clock of the files counts from none."""
    date = [instant(result.zero_unix_ns)] if result.zero_unix_ns > FIRST_DATE_UNIX_NS else []
    kinds = filter(None, [parallelism_words(result)])
    facts = "".join(f"<span>{label(word)}</span>" for word in (*read_words(result), *kinds, *date))
    return f'<div class="run"><b>ddptrace</b>{facts}</div>'
