"""What frames the report, as HTML: above, what the run is, the answer in a number and words, and where the time goes;
below, what the numbers rest on and what is missing from them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from ddptrace.analysis.device.digest import device_parts
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketSummary, Share, Summary, WindowSummary
from ddptrace.analysis.tables.device import Population
from ddptrace.load.tables import Identity
from ddptrace.render.buckets import bucket_link, named
from ddptrace.render.clocks import comparable
from ddptrace.render.headline import headline, window_overlap, window_title
from ddptrace.render.markup import label, text
from ddptrace.render.rpc_words import remote_words, split_parts
from ddptrace.render.trace.tracks import apart_words, by_rank, islands
from ddptrace.render.words import (
    EVIDENCE,
    IDENTIFIED,
    IDENTITY,
    PARTS,
    all_steps_words,
    by_order,
    compute_words,
    divided_words,
    parallelism_words,
    read_words,
    some_of,
)
from ddptrace.schema import Evidence
from ddptrace.units import counted, duration, instant, percent, size

FIRST_DATE_UNIX_NS: Final = 10**18  # September 2001
COMMIT_SHOWN: Final = 12
TAGS_SHOWN: Final = 20
SCHEDULER_NAMES: Final = {"slurm": "Slurm", "pbs": "PBS", "lsf": "LSF", "torchelastic": "torchrun"}


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
    apart = f" on the device and {duration(typical.wall_ns)} on the host" if on_device else ""
    beside = "; ".join(filter(None, (all_steps_words(summary), divided_words(summary))))
    beside = f" ({beside})" if beside else ""
    said = [escape(f"The typical step takes {duration(typical.window_ns)}{apart}{beside}.")]
    if summary.comm_ns:
        hidden = f", {escape(percent(summary.overlap_ratio))} of it behind compute" if summary.is_sure else ""
        said.append(f"It communicates for {duration(summary.comm_ns)}{hidden}.")
    remote = remote_words(summary)
    if remote is not None:
        said.append(escape(remote))
    if summary.worst is not None:
        said.append(worst_html(summary, summary.worst))
    return f'<p class="lead">{" ".join(said)}</p>'


def window_lead(window: WindowSummary) -> str:
    """Of a run without steps."""
    told = f"{window_title(window)}. {window_overlap(window)}"
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


def about_html(result: Result) -> str:
    """The run's name, tags and notes, then what it ran; nothing where nothing is known of it."""
    about = result.about
    name = f'<p class="name">{label(about.name)}</p>' if about.name else ""
    tags = "".join(f"<li>{label(tag)}</li>" for tag in about.tags[:TAGS_SHOWN])
    notes = f'<p class="notes">{text(about.notes)}</p>' if about.notes else ""
    facts = "".join(f"<li><i>{escape(term)}</i> {label(words)}</li>" for term, words in about_facts(result))
    told = (
        name,
        f'<ul class="tags">{tags}</ul>' if tags else "",
        notes,
        f'<ul class="facts">{facts}</ul>' if facts else "",
        command_html(result),
    )
    return f'<div class="about">{"".join(told)}</div>' if any(told) else ""


def command_html(result: Result) -> str:
    words = result.about.command
    return f"<pre><code>{text(shlex.join(words))}</code></pre>" if words else ""


def about_facts(result: Result) -> Iterator[tuple[str, str]]:
    """What it ran, and where."""
    about = result.about
    if about.models:
        gradients = f", {size(about.gradient_nbytes)} of gradients" if about.gradient_nbytes else ""
        yield "model", f"{some_of(about.models, 3)}{gradients}"
    if result.recorded and result.ranks:
        yield "ranks", world_words(result)
    software = [f"{name} {version}" for name, version in (("torch", about.torch), ("Python", about.python)) if version]
    if software:
        yield "software", ", ".join(software)
    if about.job_id and about.scheduler in SCHEDULER_NAMES:
        yield "job", f"{about.job_id} ({SCHEDULER_NAMES[about.scheduler]})"
    if about.commit:
        yield "commit", about.commit[:COMMIT_SHOWN]


def world_words(result: Result) -> str:
    """As in "8 on 2 hosts, NVIDIA H100, nccl"."""
    hosts = {row.host for row in result.ranks}
    devices = sorted({row.device for row in result.ranks if row.device})
    backends = sorted({name for one in result.recordings for name in one.backends})
    return ", ".join((f"{len(result.ranks)} on {counted(len(hosts), 'host')}", *devices[:3], *backends[:3]))


def measured_html(result: Result, summary: Summary) -> str:
    """What the numbers rest on."""
    facts = [
        ("typical step", f"{summary.population}: {counted(summary.steps, 'rank-step')} of {len(result.steps):,}"),
        ("compute", compute_basis_words(result)),
        *evidence_facts(result),
        *foreign_facts(result),
        *launch_facts(result),
        ("an exposed instant", "is charged to one running collective, the one that started first"),
        ("schema", result.schema if not result.recorded else f"{result.schema}, run {result.run_id}"),
    ]
    return "<dl>" + "".join(f"<dt>{text(term)}</dt><dd>{text(words)}</dd>" for term, words in facts) + "</dl>"


def compute_basis_words(result: Result) -> str:
    profiled = sum(row.profiled for row in result.steps)
    if not result.steps:
        return "from profiler windows, whole: no step was found"
    if not any(row.is_seen for row in result.steps):
        return "unknown: the findings say why"
    coarse = any(row.is_by_phase for row in result.steps)
    if not profiled and coarse:
        return "taken from forward, backward and optimizer phases without waits: coarse, no step was profiled"
    if not profiled:
        return (
            "when events show that the device had work, and else in forward, backward and update: no step was profiled"
        )
    by_events = any(row.unsure_ns is not None for row in result.steps)
    others = "from phases, coarser," if coarse else "from events, coarser," if by_events else "unknown"
    rest = f"; {others} in the others"
    rest = rest if profiled < len(result.steps) else ""
    return f"from a profiler window in {profiled:,} of {counted(len(result.steps), 'rank-step')}{rest}"


def evidence_facts(result: Result) -> Iterator[tuple[str, str]]:
    counts = Counter(row.evidence for row in result.collectives)
    for evidence in Evidence:
        if counts[evidence]:
            yield f"evidence {evidence}", f"{counted(counts[evidence], 'collective')}: {EVIDENCE[evidence]}"


def unmeasured_html(result: Result) -> str:
    lines = list(unmeasured(result))
    return listed(lines) + blind_spots_html(result)


def blind_spots_html(result: Result) -> str:
    """What no program's trace can hold, folded away: it says nothing of this run, unless a part of ddptrace failed in
    it, whose own blind spot is then among them."""
    if not result.blind_spots:
        return ""
    which = "this" if any(failed_words(result)) else "any"
    heading = f"What ddptrace does not see in {which} run"
    return f"<details><summary>{heading}</summary>{listed(result.blind_spots)}</details>"


def failed_words(result: Result) -> Iterator[str]:
    """What did not watch in this run though it should have."""
    told: dict[str, list[str]] = {}
    for finding in result.findings:
        if finding.kind.is_part_failed:
            told.setdefault(finding.message, []).append(finding.where)
    for message, where in told.items():
        yield f"On {some_of(where)}: {message}."


def listed(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>" if lines else ""


def unmeasured(result: Result) -> Iterator[str]:
    """What is missing from the numbers, each in a sentence."""
    unknown = sum(row.evidence is None for row in result.collectives)
    outside = sum(row.step is None for row in result.collectives)
    coarse = sum(row.is_by_phase for row in result.steps)
    by_events = sum(row.unsure_ns is not None for row in result.steps)
    unseen = sum(not row.is_seen for row in result.steps)
    alone = apart_words(islands(by_rank(result)))
    missing = (result.world_size or len(result.ranks)) - len(result.ranks)
    dropped = sum(row.dropped for row in result.ranks)
    unclean = [str(row.rank) for row in result.ranks if not row.clean]
    yield from failed_words(result)
    if unknown:
        some = f"{counted(unknown, 'collective')} of {len(result.collectives):,}"
        yield f"When {some} ran is unknown: they count as no communication."
    if outside:
        yield f"{counted(outside, 'collective')} ran outside every step and belong to none."
    if coarse:
        yield f"{counted(coarse, 'rank-step')} had no profiler window: what they computed is known by phase only."
    if by_events:
        yield f"{counted(by_events, 'rank-step')} had no profiler window: gaps between kernels are not seen in them."
    if unseen:
        yield f"When the rank computed and communicated is unknown in {counted(unseen, 'rank-step')}."
    if missing > 0:
        lost = "have no file here" if not result.recorded else "left nothing to read"
        yield f"{counted(missing, 'rank')} of {result.world_size} {lost}."
    if dropped:
        yield f"{counted(dropped, 'record')} were lost while training."
    if unclean:
        yield f"These ranks did not end their trace: {', '.join(unclean[:20])}{' …' if len(unclean) > 20 else ''}."
    if alone:
        yield alone
    yield from comparable(result)


def foreign_facts(result: Result) -> Iterator[tuple[str, str]]:
    """What takes the place of records, in traces that others recorded."""
    if not result.recorded:
        yield "records", "none: all of this is read out of profiler files that something else recorded"
    if by_order(result):
        yield "buckets", "gradient all-reduces of a backward, numbered in the order of their launch: nothing names them"
    counts = Counter(row.identity for row in result.collectives if row.part == 0)
    for identity in Identity if set(counts) != {Identity.RECORDED} else ():
        if counts[identity]:
            of = counted(counts[identity], "collective")
            yield f"identified by {IDENTIFIED[identity]}", f"{of}: {IDENTITY[identity]}"


def launch_facts(result: Result) -> Iterator[tuple[str, str]]:
    events = sum(row.gpu_events or 0 for row in result.ranks)
    seen = sum(row.gpu_events_with_launch or 0 for row in result.ranks)
    if events:
        rest = f"; the launch of {percent((events - seen) / events)} is not in the files" if seen < events else ""
        yield "device work", f"{counted(events, 'kernel, copy or fill', 'kernels, copies and fills')}{rest}"
