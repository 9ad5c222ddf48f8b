"""The report: one HTML file that holds everything it needs, plotly.js included, and asks the network for nothing."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from ddptrace.analysis.device_digest import device_total
from ddptrace.analysis.rpc_functions import own_calls
from ddptrace.analysis.summary import Summary, summarize, typical_steps
from ddptrace.analysis.tables import Result
from ddptrace.render import basis, device_figures, device_sections, sections
from ddptrace.render.blame_sections import across_body
from ddptrace.render.figures import Figure, buckets_figure, parts_figure, phases_figure, steps_figure
from ddptrace.render.markup import figure_html, section
from ddptrace.render.path_figures import path_figure
from ddptrace.render.rpc_sections import rpc_section
from ddptrace.render.timeline import timeline_figure
from ddptrace.render.traffic_section import traffic_section
from ddptrace.render.whole_file import whole_file
from ddptrace.render.words import by_order

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:;"
    " base-uri 'none'; form-action 'none'"
)
"""What the page may do: nothing but run what is in it. A request would be refused by the browser."""
TYPICAL = "What each rank computed, and where its communication was meanwhile. Drag to look closer."
EXPOSED = "Which gradients the step waits for, and what they hold."
BY_ORDER = (
    "Which gradients the step waits for. Nothing names the buckets here: they are numbered as they were launched."
)
DEVICE = "Where the time of each rank's device went; each instant counts once, as compute where it computed."
SCOPES = "Device time by what the host was doing when it launched the work."
BASIS = "Every number above rests on this."
ELSEWHERE = "The same on a timeline of all ranks: open trace.json.gz in Perfetto. The tables: analysis.json."


def write_report(result: Result, path: str | os.PathLike[str]) -> Path:
    """Write `path` (report.html) whole or not at all; about 5 MB, most of it plotly.js."""
    with whole_file(path) as file:
        file.write(page(result).encode("utf-8", "backslashreplace"))
    return Path(path)


HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>ddptrace report</title>
<style>{style}</style></head><body><main>
"""
TAIL = """</main><script>{plotly}</script>
<script type="application/json" id="figures">{figures}</script>
<script>{script}</script></body></html>
"""


def page(result: Result) -> str:
    summary = summarize(result)
    figures = drawn(result, summary)
    return (
        HEAD.format(policy=POLICY, style=asset("report.css"))
        + body(result, summary, {figure.key: figure_html(figure) for figure in figures})
        + TAIL.format(plotly=plotly_js(), figures=script_json([asdict(f) for f in figures]), script=asset("report.js"))
    )


def drawn(result: Result, summary: Summary) -> list[Figure]:
    steps, _ = typical_steps(result.steps)
    figures = (
        timeline_figure(result),
        buckets_figure(summary),
        steps_figure(result.steps),
        parts_figure(steps),
        phases_figure(steps),
        device_figures.device_figure(result),
        device_figures.streams_figure(result),
        device_figures.matches_figure(result),
        path_figure(result),
        *device_figures.scope_figures(result),
    )
    return [figure for figure in figures if figure is not None]


def body(result: Result, summary: Summary, pictures: dict[str, str]) -> str:
    """The page in the order in which it is read: the answer, what to do, then what it rests on."""
    picture, device = defaultdict(str, pictures), device_total(result)
    exposed = BY_ORDER if by_order(result) else EXPOSED
    return "\n".join((
        sections.run_line(result),
        sections.headline(summary, device, len(own_calls(result.rpcs))),
        sections.lead(summary),
        sections.strip(summary, device),
        section("Findings", "What stands out, gravest first.", sections.findings_html(result.findings)),
        section("A typical step", TYPICAL, picture["timeline"]),
        section("Exposed time per bucket", exposed, picture["buckets"], sections.bucket_table(summary)),
        section("Every step", "Whether the typical step is typical.", picture["steps"]),
        section("Ranks", "The typical step of each rank.", picture["ranks"]),
        section("Phases", "The same steps by what the training loop was doing.", picture["phases"]),
        *across_body(result, picture),
        *device_body(result, picture),
        rpc_section(result),
        traffic_section(result),
        section("What was measured, and how", BASIS, basis.measured_html(result, summary)),
        section("What was not", "Keep this in mind when you read the numbers.", basis.unmeasured_html(result)),
        f"<footer>{ELSEWHERE}</footer>",
    ))  # fmt: skip


def device_body(result: Result, picture: Mapping[str, str]) -> list[str]:
    """From the devices as a whole to what each of them worked on."""
    scopes = [html for key, html in picture.items() if key.startswith("scopes-")]
    tables = device_sections
    return [
        section("Device time", DEVICE, picture["device"]),
        section("Streams", "What ran beside what: each stream of the devices.", picture["streams"]),
        section("Does the host keep up?", tables.LAUNCHES, tables.launch_table(result)),
        section("Collectives", tables.collective_sub(result), tables.collective_table(result)),
        section("What the device worked for", SCOPES, *scopes),
    ]


def asset(name: str) -> str:
    return (files("ddptrace.render") / name).read_text("utf-8")


def plotly_js() -> str:
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    return str(get_plotlyjs()).replace("</script", "<\\/script")


def script_json(value: object) -> str:
    """JSON inside a script element, which no text in it can end."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
