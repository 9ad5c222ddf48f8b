"""What the report's numbers rest on, and what is missing from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary
from ddptrace.load.tables import Identity
from ddptrace.render.clocks import comparable
from ddptrace.render.markup import text
from ddptrace.render.trace.islands import apart_words, islands
from ddptrace.render.trace.tracks import by_rank
from ddptrace.render.words import EVIDENCE, IDENTIFIED, IDENTITY, by_order, some_of
from ddptrace.schema import Evidence
from ddptrace.units import counted, percent


def measured_html(result: Result, summary: Summary) -> str:
    """What the numbers rest on."""
    facts = [
        ("typical step", f"{summary.population}: {counted(summary.steps, 'rank-step')} of {len(result.steps):,}"),
        ("compute", compute_words(result)),
        *evidence_facts(result),
        *foreign_facts(result),
        *launch_facts(result),
        ("an exposed instant", "is charged to one running collective, the one that started first"),
        ("schema", result.schema if not result.recorded else f"{result.schema}, run {result.run_id}"),
    ]
    return "<dl>" + "".join(f"<dt>{text(term)}</dt><dd>{text(words)}</dd>" for term, words in facts) + "</dl>"


def compute_words(result: Result) -> str:
    profiled = sum(row.profiled for row in result.steps)
    if not result.steps:
        return "from profiler windows, whole: no step was found"
    if not any(row.is_seen for row in result.steps):
        return "unknown: it was on a device, and neither a profiler window nor events show it"
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
        yield (
            f"{counted(unseen, 'rank-step')} had no profiler window and no events that show the device: what ran"
            " there is unknown."
        )
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
