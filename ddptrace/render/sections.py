"""The words of the report, as HTML. Every name and message is escaped where it enters: none of them is markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from ddptrace.analysis.summary import BucketSummary, Share, Summary
from ddptrace.analysis.tables import Result
from ddptrace.load.tables import Finding
from ddptrace.render.figures import Figure
from ddptrace.render.words import (
    EVIDENCE,
    PARTS,
    bucket_numbers,
    counted,
    duration,
    gravest_first,
    instant,
    millis,
    percent,
    size,
)
from ddptrace.schema import Evidence

EXPOSED_MIN_RATIO: Final = 0.02
SAME_FINDING_MAX: Final = 5
PARAMETERS_OPEN_MAX: Final = 2


def headline(summary: Summary) -> str:
    number, words, calm = headline_words(summary)
    return (
        f'<h1><span class="number{" calm" if calm else ""}">{escape(number)}</span> '
        f'<span class="words">{escape(words)}</span></h1>'
    )


def headline_words(summary: Summary) -> tuple[str, str, bool]:
    """One number, what it is, and whether that is good news."""
    exposed = next((part for part in summary.parts if part.name == "exposed_comm"), None)
    if exposed is None:
        return "0 steps", "were found, so there is nothing to break down.", False
    if not summary.comm_ns:
        return duration(summary.wall_ns), "is the typical step. No communication was measured in it.", True
    if exposed.ratio < EXPOSED_MIN_RATIO:
        return (
            percent(summary.overlap_ratio),
            "of the communication is hidden behind compute: look elsewhere for time.",
            True,
        )
    return percent(exposed.ratio), "of the typical step waits for communication that nothing hides.", False


def lead(summary: Summary) -> str:
    if summary.wall_ns is None:
        return ""
    said = [f"The typical step takes {duration(summary.wall_ns)}."]
    if summary.comm_ns:
        said.append(
            f"It communicates for {duration(summary.comm_ns)}, {percent(summary.overlap_ratio)} of it behind compute."
        )
    if summary.worst is not None:
        worst = summary.worst
        name = next(name for name, bucket in named(summary.buckets) if bucket is worst)
        ends = f", the one that ends with {worst.parameters[-1]}" if worst.parameters else ""
        said.append(f"The most exposed is {name}{ends}: {duration(worst.exposed_charged_ns)} per step.")
    return f'<p class="lead">{escape(" ".join(said))}</p>'


def named(buckets: Sequence[BucketSummary]) -> list[tuple[str, BucketSummary]]:
    return [(f"bucket {number}", bucket) for number, bucket in zip(bucket_numbers(buckets), buckets, strict=True)]


def strip(summary: Summary) -> str:
    """The typical step as one bar, and its key."""
    parts = [part for part in summary.parts if part.ratio > 0]
    pieces = "".join(f'<i class="{part.name}" style="flex:{part.ratio:.6f}"></i>' for part in parts)
    bar = f'<div class="strip" role="img" aria-label="the typical step">{pieces}</div>'
    return f'{bar}<ul class="key">{"".join(map(key_html, parts))}</ul>' if parts else ""


def key_html(part: Share) -> str:
    figures = f"<span>{duration(part.ns)} · {escape(percent(part.ratio))}</span>"
    return f'<li><i class="{part.name}"></i>{PARTS[part.name]} {figures}</li>'


def run_line(result: Result) -> str:
    facts = [
        f"<b>ddptrace</b><span>run {escape(result.run_id[:12])}</span>",
        f"<span>{counted(len(result.ranks), 'rank')}</span>",
        f"<span>{counted(len({row.step for row in result.steps}), 'step')}</span>",
        f"<span>{instant(result.zero_unix_ns)}</span>",
    ]
    return f'<div class="run">{"".join(facts)}</div>'


def section(title: str, sub: str, *content: str) -> str:
    """A section with what it has to show; nothing where it has nothing."""
    body = "".join(content)
    return f"<section><h2>{escape(title)}</h2><p class='sub'>{escape(sub)}</p>{body}</section>" if body else ""


def figure_html(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return (
        f'<figure><div id="figure-{figure.key}" style="height:{figure.height_px}px"></div>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


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


def table(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """`heads` are title and class of each column; cells are HTML."""
    top = "".join(f'<th class="{kind}">{escape(title)}</th>' for title, kind in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, (_, kind) in zip(row, heads, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


BUCKET_HEADS: Final = (
    ("bucket", ""),
    ("exposed ms", ""),
    ("of step", ""),
    ("comm ms", ""),
    ("hidden", ""),
    ("queue ms", ""),
    ("size", ""),
    ("parameters", "names"),
    ("evidence", ""),
)


def bucket_table(summary: Summary) -> str:
    rows = [bucket_cells(name, bucket) for name, bucket in named(summary.buckets)]
    return table(BUCKET_HEADS, rows) if rows else ""


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


def measured_html(result: Result, summary: Summary) -> str:
    """What the numbers rest on."""
    facts = [
        ("typical step", f"{summary.population}: {counted(summary.steps, 'rank step')} of {len(result.steps):,}"),
        ("compute", compute_words(result)),
        *evidence_facts(result),
        ("an exposed instant", "is charged to one running collective, the one that started first"),
        ("schema", f"{result.schema}, run {result.run_id}"),
    ]
    return "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(words)}</dd>" for term, words in facts) + "</dl>"


def compute_words(result: Result) -> str:
    profiled = sum(row.profiled for row in result.steps)
    if not profiled:
        return "taken from forward, backward and optimizer phases without waits: coarse, no step was profiled"
    rest = "; from phases, coarser, in the others" if profiled < len(result.steps) else ""
    return f"from a profiler window in {profiled:,} of {counted(len(result.steps), 'rank step')}{rest}"


def evidence_facts(result: Result) -> Iterator[tuple[str, str]]:
    counts = Counter(row.evidence for row in result.collectives)
    for evidence in Evidence:
        if counts[evidence]:
            yield f"evidence {evidence}", f"{counted(counts[evidence], 'collective')}: {EVIDENCE[evidence]}"


def unmeasured_html(result: Result) -> str:
    lines = list(unmeasured(result))
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def unmeasured(result: Result) -> Iterator[str]:
    """What is missing from the numbers, each in a sentence."""
    unknown = sum(row.evidence is None for row in result.collectives)
    outside = sum(row.step is None for row in result.collectives)
    coarse = sum(not row.profiled for row in result.steps)
    missing = (result.world_size or len(result.ranks)) - len(result.ranks)
    dropped = sum(row.dropped for row in result.ranks)
    unclean = [str(row.rank) for row in result.ranks if not row.clean]
    if unknown:
        some = f"{counted(unknown, 'collective')} of {len(result.collectives):,}"
        yield f"When {some} ran is unknown: they count as no communication."
    if outside:
        yield f"{counted(outside, 'collective')} ran outside every step and belong to none."
    if coarse:
        yield f"{counted(coarse, 'rank step')} had no profiler window: what they computed is known by phase only."
    if missing > 0:
        yield f"{counted(missing, 'rank')} of {result.world_size} left nothing to read."
    if dropped:
        yield f"{counted(dropped, 'record')} were lost while training."
    if unclean:
        yield f"These ranks did not end their trace: {', '.join(unclean[:20])}{' …' if len(unclean) > 20 else ''}."
    yield "Clocks of different hosts are not aligned: compare instants of one host only."
