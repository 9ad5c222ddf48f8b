"""The words of the report, as HTML. Every name and message is escaped where it enters: none of them is markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Final

from ddptrace.analysis.device_digest import device_parts
from ddptrace.analysis.launches import LAUNCH_BOUND_RATIO
from ddptrace.analysis.summary import BucketSummary, Share, Summary
from ddptrace.analysis.tables import Population, Result
from ddptrace.load.tables import Finding
from ddptrace.render.markup import table
from ddptrace.render.rpc_words import remote_words, split_parts, waiting
from ddptrace.render.words import (
    PARTS,
    all_steps_words,
    bucket_numbers,
    counted,
    duration,
    gravest_first,
    instant,
    millis,
    percent,
    read_words,
    size,
)

EXPOSED_MIN_RATIO: Final = 0.02
SAME_FINDING_MAX: Final = 5
PARAMETERS_OPEN_MAX: Final = 2
FIRST_DATE_UNIX_NS: Final = 10**18  # September 2001
NO_COMM: Final = "No communication was measured in it."
CALM_CALLS: Final = "Next to nothing of it waits for its remote calls."


def headline(summary: Summary, device: Population | None, remote_calls: int = 0) -> str:
    """`device`: of all ranks together, for a run without steps; `remote_calls`: so many were made."""
    if summary.parts or device is None:
        number, words, calm = headline_words(summary, remote_calls)
    else:
        number, words, calm = device_words(device)
    return (
        f'<h1><span class="number{" calm" if calm else ""}">{escape(number)}</span> '
        f'<span class="words">{escape(words)}</span></h1>'
    )


def headline_words(summary: Summary, remote_calls: int = 0) -> tuple[str, str, bool]:
    """One number, what it is, and whether that is good news."""
    exposed = next((part for part in summary.parts if part.name == "exposed_comm"), None)
    if exposed is None and remote_calls:
        return f"{remote_calls:,}", "remote calls were made. No step was found that could be broken down.", True
    if exposed is None:
        return "0 steps", "were found, so there is nothing to break down.", False
    host_ratio = (summary.host_idle_ns or 0) / summary.window_ns if summary.window_ns else 0.0
    remote = waiting(summary)
    if remote is not None and remote.ratio > max(exposed.ratio, EXPOSED_MIN_RATIO, host_ratio / 2):
        return percent(remote.ratio), "of the typical step waits for remote calls, and nothing else runs.", False
    if host_ratio > max(exposed.ratio, LAUNCH_BOUND_RATIO):
        return percent(host_ratio), "of the typical step the device waits for the host to launch work.", False
    if not summary.comm_ns:
        return duration(summary.wall_ns), f"is the typical step. {CALM_CALLS if summary.rpc_calls else NO_COMM}", True
    return waiting_words(exposed.ratio, summary.overlap_ratio, "the typical step")


def device_words(device: Population) -> tuple[str, str, bool]:
    if not device.comm_ns:
        busy = percent(1 - device.idle_ns / device.span_ns) if device.span_ns else "0 %"
        return busy, "of the device's time it was busy. No communication and no step was found.", True
    return waiting_words(device.exposed_ns / (device.span_ns or 1), device.overlap_ratio, "the device's time")


def waiting_words(exposed_ratio: float, overlap_ratio: float | None, whole: str) -> tuple[str, str, bool]:
    if exposed_ratio < EXPOSED_MIN_RATIO:
        return percent(overlap_ratio), "of the communication is hidden behind compute: look elsewhere for time.", True
    return percent(exposed_ratio), f"of {whole} waits for communication that nothing hides.", False


def lead(summary: Summary) -> str:
    if summary.wall_ns is None:
        return ""
    on_device = duration(summary.wall_ns) != duration(summary.window_ns)
    apart = f" on the device ({duration(summary.wall_ns)} on the host)" if on_device else ""
    every = all_steps_words(summary)
    beside = "" if every is None else f" ({every})"
    said = [f"The typical step takes {duration(summary.window_ns)}{apart}{beside}."]
    if summary.comm_ns:
        said.append(
            f"It communicates for {duration(summary.comm_ns)}, {percent(summary.overlap_ratio)} of it behind compute."
        )
    remote = remote_words(summary)
    if remote is not None:
        said.append(remote)
    if summary.worst is not None:
        worst = summary.worst
        name = next(name for name, bucket in named(summary.buckets) if bucket is worst)
        holds = f", the one with {worst.parameters[-1]}" if worst.parameters else ""
        said.append(f"The most exposed is {name}{holds}: {duration(worst.exposed_charged_ns)} per step.")
    return f'<p class="lead">{escape(" ".join(said))}</p>'


def named(buckets: Sequence[BucketSummary]) -> list[tuple[str, BucketSummary]]:
    return [(f"bucket {number}", bucket) for number, bucket in zip(bucket_numbers(buckets), buckets, strict=True)]


def strip(summary: Summary, device: Population | None) -> str:
    """The typical step, or without steps the devices' time, as one bar, and its key."""
    shown = split_parts(summary) or (device_parts(device) if device is not None else ())
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
    facts = "".join(f"<span>{escape(word)}</span>" for word in (*read_words(result), *date))
    return f'<div class="run"><b>ddptrace</b>{facts}</div>'


def findings_html(findings: Sequence[Finding]) -> str:
    """Gravest first; of many findings of one code the first, and how many more."""
    told: Counter[str] = Counter()
    items = []
    for finding in gravest_first(findings):
        told[finding.code] += 1
        if told[finding.code] <= SAME_FINDING_MAX:
            items.append(finding_html(finding))
    items += [more_html(code, n - SAME_FINDING_MAX) for code, n in told.items() if n > SAME_FINDING_MAX]
    return f'<ul class="findings">{"".join(items)}</ul>' if items else ""


def more_html(code: str, more: int) -> str:
    return (
        f'<li class="info"><p>… and {counted(more, "more finding")} of the kind <code>{escape(code)}</code>.</p></li>'
    )


def finding_html(finding: Finding) -> str:
    tone = finding.severity if finding.severity in ("error", "warning") else "info"
    return (
        f'<li class="{tone}"><span class="severity">{escape(finding.severity)}</span>'
        f'<span class="where">{escape(finding.where)}</span><p>{escape(finding.message)}</p></li>'
    )


NAMES: Final = ("parameters", "names")
BUCKET_HEADS: Final = (
    ("bucket", ""),
    ("exposed ms", ""),
    ("of step", ""),
    ("comm ms", ""),
    ("hidden", ""),
    ("queue ms", ""),
    ("size", ""),
    NAMES,
    ("evidence", ""),
)


def bucket_table(summary: Summary) -> str:
    """Without the column of parameters where nothing names them."""
    rows = [bucket_cells(name, bucket) for name, bucket in named(summary.buckets)]
    if any(bucket.parameters for bucket in summary.buckets):
        return table(BUCKET_HEADS, rows)
    at = BUCKET_HEADS.index(NAMES)
    return table(BUCKET_HEADS[:at] + BUCKET_HEADS[at + 1 :], (row[:at] + row[at + 1 :] for row in rows)) if rows else ""


def bucket_cells(name: str, bucket: BucketSummary) -> list[str]:
    hidden = bucket.hidden_ns / bucket.comm_ns if bucket.comm_ns and bucket.hidden_ns is not None else None
    return [
        escape(name),
        millis(bucket.exposed_charged_ns),
        escape(percent(bucket.step_ratio)),
        millis(bucket.comm_ns),
        escape(percent(hidden)),
        millis(bucket.queue_ns),
        size(bucket.nbytes),
        parameters_html(bucket.parameters),
        escape(bucket.evidence or "not measured"),
    ]


def parameters_html(names: Sequence[str]) -> str:
    whole = ", ".join(f"<code>{escape(name)}</code>" for name in names)
    if len(names) <= PARAMETERS_OPEN_MAX:
        return whole
    ends = f"<code>{escape(names[0])}</code> … <code>{escape(names[-1])}</code>"
    return f"{ends}<details><summary>all {len(names)} parameters</summary>{whole}</details>"
