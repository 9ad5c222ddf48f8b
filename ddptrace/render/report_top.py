"""What stands at the top of the report, as HTML: the run, the answer in a number and words, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from ddptrace.analysis.device.digest import device_parts
from ddptrace.analysis.device.rows import LAUNCH_BOUND_RATIO
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketSummary, Share, Summary
from ddptrace.analysis.tables.device import Population
from ddptrace.analysis.tables.ranks import SuspectRow
from ddptrace.render.buckets import bucket_link, named
from ddptrace.render.markup import label
from ddptrace.render.rpc.words import remote_words, split_parts, waiting
from ddptrace.render.words import EVIDENCE, PARTS, UNSEEN, all_steps_words, parallelism_words, read_words
from ddptrace.units import counted, duration, instant, percent

EXPOSED_MIN_RATIO: Final = 0.02
FIRST_DATE_UNIX_NS: Final = 10**18  # September 2001
NO_COMM: Final = "No communication was measured in it."
CALM_CALLS: Final = "Next to nothing of it waits for its remote calls."


def headline(
    summary: Summary, device: Population | None, remote_calls: int = 0, suspects: Sequence[SuspectRow] = ()
) -> str:
    """`device`: of all ranks together, for a run without steps; `remote_calls`: so many were made; `suspects`: dearest
    first."""
    exposed = exposed_part(summary)
    if exposed is not None and suspects and suspects[0].cost_ratio > max(exposed.ratio, EXPOSED_MIN_RATIO):
        number, words, calm = late_words(suspects[0])
    elif summary.parts or device is None:
        number, words, calm = headline_words(summary, remote_calls)
    else:
        number, words, calm = device_words(device)
    return (
        f'<h1><span class="number{" calm" if calm else ""}">{escape(number)}</span> '
        f'<span class="words">{escape(words)}</span></h1>'
    )


def headline_words(summary: Summary, remote_calls: int = 0) -> tuple[str, str, bool]:
    """One number, what it is, and whether that is good news."""
    exposed = exposed_part(summary)
    if summary.steps and not summary.is_seen:
        return duration(summary.wall_ns), f"is the typical step, on the host. {UNSEEN}", False
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
    return won_words(exposed, summary.window_ns or 0, "the typical step")


def late_words(late: SuspectRow) -> tuple[str, str, bool]:
    """A rank that costs more than all exposed communication: no hiding wins that back."""
    told = f"of a step could be won if rank {late.rank} were as fast as the others ({late.cause})"
    return percent(late.cost_ratio), f"{told}: {duration(late.cost_ns)}.", False


def device_words(device: Population) -> tuple[str, str, bool]:
    if not device.comm_ns:
        busy = percent(1 - device.idle_ns / device.span_ns) if device.span_ns else "0 %"
        return busy, "of the device's time it was busy. No communication and no step was found.", True
    exposed = Share("exposed_comm", device.exposed_ns, device.exposed_ns / (device.span_ns or 1))
    return won_words(exposed, device.span_ns, "the devices' time")


def won_words(exposed: Share, whole_ns: int, whole: str) -> tuple[str, str, bool]:
    calm = exposed.ratio < EXPOSED_MIN_RATIO
    told = f"of {whole} could be won by hiding communication, at most: {duration(exposed.ns)} of {duration(whole_ns)}."
    return percent(exposed.ratio), told + (" Look elsewhere for time." if calm else ""), calm


def exposed_part(summary: Summary) -> Share | None:
    return next((part for part in summary.parts if part.name == "exposed_comm"), None)


def evidence_line(summary: Summary) -> str:
    """What the number is, and what it rests on."""
    exposed = exposed_part(summary)
    if exposed is None or not summary.comm_ns or summary.evidence is None:
        return ""
    compute = "" if summary.profiled else " Compute is taken from phases, not from a profiler: coarse."
    told = (
        f"{duration(exposed.ns)} is how long communication runs and nothing is computed beside it: an upper bound,"
        " since what is launched last has little left to hide behind. Mean of"
        f" {counted(summary.steps, 'rank-step')}, {summary.population}; evidence {summary.evidence}:"
        f" {EVIDENCE[summary.evidence]}.{compute}"
    )
    return f'<p class="evidence">{escape(told)}</p>'


def lead(summary: Summary) -> str:
    if summary.wall_ns is None:
        return ""
    on_device = duration(summary.wall_ns) != duration(summary.window_ns)
    apart = f" on the device ({duration(summary.wall_ns)} on the host)" if on_device else ""
    every = all_steps_words(summary)
    beside = "" if every is None else f" ({every})"
    said = [escape(f"The typical step takes {duration(summary.window_ns)}{apart}{beside}.")]
    if summary.comm_ns:
        hidden = escape(percent(summary.overlap_ratio))
        said.append(f"It communicates for {duration(summary.comm_ns)}, {hidden} of it behind compute.")
    remote = remote_words(summary)
    if remote is not None:
        said.append(escape(remote))
    if summary.worst is not None:
        said.append(worst_html(summary, summary.worst))
    return f'<p class="lead">{" ".join(said)}</p>'


def worst_html(summary: Summary, worst: BucketSummary) -> str:
    name = next(name for name, bucket in named(summary.buckets) if bucket is worst)
    holds = f", the one with {label(worst.parameters[-1])}" if worst.parameters else ""
    return f"The most exposed is {bucket_link(name, worst)}{holds}: {duration(worst.exposed_charged_ns)} per step."


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
    kinds = filter(None, [parallelism_words(result)])
    facts = "".join(f"<span>{label(word)}</span>" for word in (*read_words(result), *kinds, *date))
    return f'<div class="run"><b>ddptrace</b>{facts}</div>'
