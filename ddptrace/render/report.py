"""The report: one HTML file that holds everything it needs, plotly.js and the findings included, and asks the network
for nothing."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Final

from ddptrace.analysis.device.digest import device_total
from ddptrace.analysis.result import Result
from ddptrace.analysis.steps.windows import summarize_windows
from ddptrace.analysis.summary import Summary, measured_steps, summarize
from ddptrace.analysis.whatif.answer import Forecast
from ddptrace.findings import Finding, FindingKind, gravest_first
from ddptrace.render import report_top, units
from ddptrace.render.buckets import TYPICAL, bucket_table
from ddptrace.render.collectives import bandwidth_figure, bandwidth_section, nccl_section
from ddptrace.render.device import device_figures, launches, time_spent
from ddptrace.render.experts import expert_figure, expert_section
from ddptrace.render.figure import Figure, buckets_figure, parts_figure, phases_figure
from ddptrace.render.markup import contents, figure_html, label, section, slug, text
from ddptrace.render.pipeline import pipeline_figure, pipeline_section
from ddptrace.render.ranks.pages import across_body
from ddptrace.render.ranks.rank_figures import bucket_heat, jitter_heat, matches_figure, path_figure
from ddptrace.render.rpc import rpc_section
from ddptrace.render.step_timeline import timeline_figure
from ddptrace.render.steps import steps_figure
from ddptrace.render.traffic.pages import traffic_section
from ddptrace.render.whatif.answers import advice_section, scaling_figure, scaling_section
from ddptrace.render.whole_file import whole_file
from ddptrace.render.words import by_order
from ddptrace.units import counted

NO_FORECAST: Final = Forecast()

POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:;"
    " base-uri 'none'; form-action 'none'"
)
"""What the page may do: nothing but run what is in it. A request would be refused by the browser."""
TYPICAL_SUB = "What each rank computed, and where its communication was meanwhile. Drag to look closer."
EXPOSED = "Which gradients the step waits for, and what they hold."
BY_ORDER = (
    "Which gradients the step waits for. Nothing names the buckets here: they are numbered as they were launched."
)
DEVICE = "Where the time of each rank's device went; each instant counts once, as compute where it computed."
SCOPES = "Device time by what the host was doing when it launched the work."
BASIS = "Every number above rests on this."
ELSEWHERE = "The same on a timeline of all ranks: open trace.json.gz in Perfetto. The tables: analysis.json."

SAME_MAX: Final = 3
NOTES_OPEN_MAX: Final = 2
GRAVE: Final = ("error", "warning")
NEXT_SUB: Final = "What the numbers below say to change, or to look at first."
REST_SUB: Final = "What else stands out, gravest first."

Pictures = Mapping[str, str]
"""The HTML of each figure, by its key."""

HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>ddptrace report</title>
<style>{style}</style></head><body>{before}<main id="main" tabindex="-1">
"""
TAIL = """</main><script type="application/json" id="figures">{figures}</script>
<script>{plotly}</script>
<script>{script}</script></body></html>
"""
SKIP = '<a class="skip" href="#main">Skip to the answer</a>'


def write_report(result: Result, path: str | os.PathLike[str], forecast: Forecast = NO_FORECAST) -> Path:
    """Write `path` (report.html) whole or not at all; about 1.7 MB, most of it plotly.js. `forecast`: what
    `ddptrace.predictor.forecast` gives."""
    with whole_file(path) as file:
        file.write(page(result, forecast).encode("utf-8", "backslashreplace"))
    return Path(path)


def page(result: Result, forecast: Forecast = NO_FORECAST) -> str:
    summary = summarize(result)
    figures = drawn(result, summary, forecast)
    pictures = defaultdict(str, {figure.key: figure_html(figure) for figure in figures})
    found = chapters(result, summary, pictures, forecast)
    return (
        HEAD.format(policy=POLICY, style=asset("report.css"), before=SKIP + contents(found))
        + "\n".join((top(result, summary), *(html for _, html in found), f"<footer>{ELSEWHERE}</footer>"))
        + TAIL.format(plotly=plotly_js(), figures=script_json([asdict(f) for f in figures]), script=asset("report.js"))
    )


def drawn(result: Result, summary: Summary, forecast: Forecast = NO_FORECAST) -> list[Figure]:
    steps, _ = measured_steps(result.steps)
    figures = (
        timeline_figure(result),
        buckets_figure(summary),
        bucket_heat(result),
        steps_figure(result.steps),
        parts_figure(steps),
        phases_figure(steps),
        matches_figure(result),
        path_figure(result),
        jitter_heat(result),
        pipeline_figure(result),
        scaling_figure(forecast.scale or ()),
        expert_figure(result),
        bandwidth_figure(result),
        device_figures.device_figure(result),
        device_figures.streams_figure(result),
        *device_figures.scope_figures(result),
    )
    return [figure for figure in figures if figure is not None]


def top(result: Result, summary: Summary) -> str:
    """The answer: one number, what it rests on, and where the time goes."""
    device, window = device_total(result), summarize_windows(result)
    return "\n".join(
        (
            report_top.run_line(result),
            report_top.about_html(result),
            report_top.headline_html(result, summary),
            report_top.lead(summary) if window is None else report_top.window_lead(window),
            report_top.strip(summary, device) if window is None else report_top.parts_strip(window.parts),
            report_top.evidence_line(summary),
        )
    )


def chapters(result: Result, summary: Summary, picture: Pictures, forecast: Forecast) -> list[tuple[str, str]]:
    """The page in the order in which it is read: what to do, then what it rests on."""
    below = [
        ("The step", "\n".join(step_body(result, summary, picture))),
        ("Ranks", "\n".join(rank_body(result, picture))),
        ("The wire", "\n".join(wire_body(result, picture))),
        ("Devices", "\n".join(device_body(result, picture))),
        ("Simulated", scaling_section(forecast, picture["scaling"])),
        ("How sure", "\n".join(basis_body(result, summary))),
    ]
    return [("What to do", "\n".join(advice_body(result, forecast, "".join(html for _, html in below)))), *below]


def advice_body(result: Result, forecast: Forecast, there: str) -> list[str]:
    """`there`: what can be linked."""
    findings = result.findings
    return [next_section(findings, there), advice_section(forecast), findings_section(findings, there)]


def step_body(result: Result, summary: Summary, picture: Pictures) -> list[str]:
    exposed = BY_ORDER if by_order(result) else EXPOSED
    buckets = picture["buckets"], bucket_table(summary), picture["buckets-by-rank"]
    return [
        section(TYPICAL, TYPICAL_SUB, picture["timeline"]),
        section("Exposed time per bucket", exposed, *buckets),
        section(units.TITLE, units.SUB, units.unit_table(result)),
        section(units.BY_DIMENSION, units.BY_DIMENSION_SUB, units.dimension_table(result)),
        section("Every step", "Whether the typical step is typical.", picture["steps"]),
    ]


def rank_body(result: Result, picture: Pictures) -> list[str]:
    return [
        section("Ranks", "The typical step of each rank.", picture["ranks"]),
        section("Phases", "The same steps by what the training loop was doing.", picture["phases"]),
        *across_body(result, picture),
        pipeline_section(result, picture["pipeline"]),
    ]


def wire_body(result: Result, picture: Pictures) -> list[str]:
    return [
        section("Collectives", launches.collective_sub(result), launches.collective_table(result)),
        bandwidth_section(result, picture["bandwidth"]),
        nccl_section(result.nccl),
        traffic_section(result),
        expert_section(result, picture["experts"]),
        rpc_section(result),
    ]


def device_body(result: Result, picture: Pictures) -> list[str]:
    """From the devices as a whole to what each of them worked on."""
    scopes = [html for key, html in picture.items() if key.startswith("scopes-")]
    return [
        section("Device time", DEVICE, picture["device"]),
        section("Streams", "What ran beside what: each stream of the devices.", picture["streams"]),
        section("Does the host keep up?", launches.LAUNCH_SUB, launches.launch_table(result)),
        section("What held the host", time_spent.IDLE_SUB, time_spent.idle_table(result)),
        section("Copies", time_spent.COPY_SUB, time_spent.copy_table(result)),
        section("Kernels", time_spent.KERNEL_SUB, time_spent.kernel_table(result)),
        section("What the device worked for", SCOPES, *scopes),
    ]


def basis_body(result: Result, summary: Summary) -> list[str]:
    return [
        section("What was measured, and how", BASIS, report_top.measured_html(result, summary)),
        section("What was not", "Keep this in mind when you read the numbers.", report_top.unmeasured_html(result)),
    ]


def asset(name: str) -> str:
    return (files("ddptrace.render") / name).read_text("utf-8")


def plotly_js() -> str:
    """The bundle of plotly.js that draws on two axes, a third of the whole. It lies in `plotly/` as npm has it, in
    plotly.js-cartesian-dist-min, with its licence."""
    return asset("plotly/plotly-cartesian.min.js").replace("</script", "<\\/script")


def script_json(value: object) -> str:
    """JSON inside a script element, which no text in it can end."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def next_section(findings: Sequence[Finding], there: str) -> str:
    """What to do, in the order in which it is told on the terminal. `there`: the sections that can be linked."""
    items = list(finding_items([finding for finding in findings if finding.kind.is_advice], there))
    return section("Look at next", NEXT_SUB, listed(items))


def findings_section(findings: Sequence[Finding], there: str) -> str:
    """Of what is only to be known, more than a few notes are folded away."""
    others = gravest_first([finding for finding in findings if not finding.kind.is_advice])
    grave = list(finding_items([finding for finding in others if finding.severity in GRAVE], there))
    notes = list(finding_items([finding for finding in others if finding.severity not in GRAVE], there))
    return section("Findings", REST_SUB, listed(grave), listed(notes, folded=len(notes) > NOTES_OPEN_MAX))


def listed(items: Sequence[str], folded: bool = False) -> str:
    if not items:
        return ""
    whole = f'<ul class="findings">{"".join(items)}</ul>'
    return f"<details><summary>{counted(len(items), 'note')}</summary>{whole}</details>" if folded else whole


def finding_items(findings: Sequence[Finding], there: str) -> Iterator[str]:
    """Of many findings of one code the first, and how many more."""
    told: Counter[str] = Counter()
    for finding in findings:
        told[finding.code] += 1
        if told[finding.code] <= SAME_MAX:
            yield finding_html(finding, there)
    for code, count in told.items():
        if count > SAME_MAX:
            more = counted(count - SAME_MAX, "more finding")
            yield f'<li class="info"><p>… and {more} of the kind <code>{label(code)}</code>.</p></li>'


def finding_html(finding: Finding, there: str) -> str:
    tone = finding.severity if finding.severity in GRAVE else "info"
    return (
        f'<li class="{tone}"><span class="severity">{label(finding.severity)}</span>'
        f'<span class="where">{label(finding.where)}</span><p>{text(finding.message)}</p>'
        f"{link_html(finding.kind, there)}</li>"
    )


def link_html(kind: FindingKind, there: str) -> str:
    """Link the first of the kind's sections that the report has."""
    for title in kind.sections:
        if f'<section id="{slug(title)}">' in there:
            return f'<a class="see" href="#{slug(title)}">{escape(title)}</a>'
    return ""
