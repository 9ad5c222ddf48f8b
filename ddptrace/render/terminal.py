"""What a person understands in ten seconds, in at most `WIDTH` columns of plain text."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.steps.windows import summarize_windows
from ddptrace.analysis.summary import BucketSummary, RankSummary, Share, Summary, WindowSummary, summarize
from ddptrace.analysis.units.digest import units
from ddptrace.errors import printable
from ddptrace.findings import Finding, gravest_first
from ddptrace.render.collectives import nccl_of_run
from ddptrace.render.device.launches import collective_lines, device_lines, scope_lines
from ddptrace.render.device.time_spent import copy_lines, idle_lines, kernel_lines
from ddptrace.render.experts import expert_lines
from ddptrace.render.headline import headline, window_overlap, window_title
from ddptrace.render.pipeline import pipeline_lines
from ddptrace.render.ranks.pages import across_lines
from ddptrace.render.rpc_words import remote_words, rpc_lines, waiting
from ddptrace.render.trace.tracks import apart_words, by_rank, islands
from ddptrace.render.units import dimension_lines, tensor_lines, unit_lines
from ddptrace.render.words import (
    EVIDENCE,
    PARTS,
    UNSEEN,
    WIDTH,
    all_steps_words,
    bucket_numbers,
    by_order,
    compute_words,
    cut,
    divided_words,
    hidden_words,
    indented,
    known_phases,
    parallelism_words,
    read_words,
)
from ddptrace.units import counted, duration, millis, percent, size

BAR: Final = 40
MOST_BUCKETS: Final = 5
MOST_RANKS: Final = 8
NOTICEABLE_RATIO: Final = 0.02
CHARGED: Final = "exposed: an instant in which several are under way counts once, for the one that began first"
MOST_FINDINGS: Final = 6


def summary_text(result: Result) -> str:
    """The whole summary, its lines ending in a newline."""
    summary, window = summarize(result), summarize_windows(result)
    advice = [finding for finding in result.findings if finding.kind.is_advice]
    others = [finding for finding in result.findings if not finding.kind.is_advice]
    device = list(device_lines(result))
    sections = [
        [
            title(result),
            *textwrap.wrap(parallelism_words(result), WIDTH),
            *textwrap.wrap(apart_words(islands(by_rank(result))), WIDTH),
        ],
        textwrap.wrap(headline(result, summary).text, WIDTH) if result.steps or device or window is not None else [],
        list(breakdown_lines(summary, window)) if result.steps or window is not None or not device else [],
        list(bucket_lines(summary.buckets, by_order(result))),
        list(unit_lines(units(result))),
        list(dimension_lines(result)),
        list(tensor_lines(result)),
        list(rank_lines(summary.ranks)),
        device,
        list(across_lines(result)),
        list(pipeline_lines(result)),
        list(expert_lines(result)),
        list(idle_lines(result)),
        list(copy_lines(result)),
        list(collective_lines(result)),
        list(nccl_of_run(result.nccl)),
        list(rpc_lines(result)),
        list(kernel_lines(result)),
        list(scope_lines(result)),
        list(finding_lines("Findings", gravest_first(others))),
        list(finding_lines("Look at next", advice)),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def title(result: Result) -> str:
    return " · ".join(("ddptrace", *read_words(result)))


def step_lines(summary: Summary) -> Iterator[str]:
    """Where the typical step goes."""
    typical = summary.typical
    if typical is None:
        yield "No step was found, so there is nothing to break down."
        return
    mean = f"(mean of {counted(typical.steps, 'rank-step')}: {typical.population})"
    yield from textwrap.wrap(f"Typical step {duration(typical.window_ns)}  {mean}", WIDTH, subsequent_indent="  ")
    for more in filter(None, (all_steps_words(summary), divided_words(summary))):
        yield from textwrap.wrap(more, WIDTH, initial_indent="  ", subsequent_indent="    ")
    if duration(typical.wall_ns) != duration(typical.window_ns):
        yield f"  on the device, from the end of one step's work to the next; {duration(typical.wall_ns)} on the host"
    for part in summary.parts:
        if part.ns or part.name != "exposed_memory":
            yield part_line(PARTS[part.name], part)
    remote = waiting(summary)
    if remote is not None:
        yield part_line("  in remote calls", remote)
    phases = known_phases(summary)
    if phases:
        yield f"  {phase_words(phases)}"
    yield ""
    yield from indented(overlap_words(summary))


def breakdown_lines(summary: Summary, window: WindowSummary | None) -> Iterator[str]:
    """Where the typical step goes; of a run without steps, its mean profiler window."""
    yield from step_lines(summary) if window is None else window_lines(window)


def window_lines(window: WindowSummary) -> Iterator[str]:
    """Where the profiler window goes, of a run without steps."""
    yield from textwrap.wrap(window_title(window), WIDTH, subsequent_indent="  ")
    for part in window.parts:
        if part.ns or part.name != "exposed_memory":
            yield part_line(PARTS[part.name], part)
    if window.queued_ns:
        yield part_line("  with work queued", Share("queued", window.queued_ns, window.queued_ns / window.window_ns))
    yield ""
    yield from indented(window_overlap(window))


def part_line(name: str, part: Share) -> str:
    bar = bar_of(part.ratio)
    return f"  {name:<22} {bar:<{BAR}} {millis(part.ns):>9} ms  {percent(part.ratio):>6}"


def phase_words(phases: Sequence[Share]) -> str:
    """As in "data 3 % · forward 24 % · backward 61 % · optimizer 8 % · other 4 %"."""
    return " · ".join(f"{phase.name} {percent(phase.ratio)}" for phase in phases)


def bar_of(ratio: float) -> str:
    """A bar of eighths; what is not nothing is drawn at least as one."""
    eighths = max(round(ratio * BAR * 8), 1) if ratio > 0 else 0
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def overlap_words(summary: Summary) -> str:
    if summary.steps and not summary.is_seen:
        return UNSEEN
    remote = remote_words(summary)
    if not summary.comm_ns or summary.evidence is None:
        what = "communication" if remote is None else "collective"
        told = f"No {what} was measured in these steps, so the overlap is unknown."
        return told if remote is None else f"{remote} {told}"
    if not summary.is_sure:
        return (
            f"How much of {duration(summary.comm_ns)} communication is hidden behind compute is unknown (evidence"
            f" {summary.evidence}: {EVIDENCE[summary.evidence]}).{compute_words(summary)}"
        )
    return (
        f"{percent(summary.overlap_ratio)} of {duration(summary.comm_ns)} communication is hidden behind compute"
        f" (evidence {summary.evidence}: {EVIDENCE[summary.evidence]}).{compute_words(summary)}"
        + (f" {remote}" if remote else "")
    )


def bucket_lines(buckets: Sequence[BucketSummary], by_order: bool) -> Iterator[str]:
    """The buckets that the step waits for, worst first; `by_order`: nothing names them."""
    exposed = [bucket for bucket in buckets if bucket.exposed_charged_ns]
    if not exposed:
        return
    how, named = (", numbered as launched", "") if by_order else ("", "with parameter")
    yield f"Most exposed buckets  ({min(MOST_BUCKETS, len(exposed))} of {len(buckets)}{how})"
    heads = f"{'bucket':<20} {'size':>8}  {'exposed ms':>10}  {'of step':>7}  {'hidden':>6}"
    yield f"  {heads}  {named}".rstrip()
    for name, bucket in zip(bucket_numbers(exposed), exposed[:MOST_BUCKETS], strict=False):
        hidden = hidden_words(bucket.hidden_ns, bucket.comm_ns)
        figures = f"{millis(bucket.exposed_charged_ns):>10}  {percent(bucket.step_ratio):>7}  {hidden:>6}"
        last = cut(bucket.parameters[-1], WIDTH - 63) if bucket.parameters else ""
        yield f"  {name:<20} {size(bucket.nbytes):>8}  {figures}  {last}".rstrip()
    if any(is_partly_charged(bucket) for bucket in exposed[:MOST_BUCKETS]):
        yield f"  {CHARGED}"


def is_partly_charged(bucket: BucketSummary) -> bool:
    """More of it is exposed than is charged to it: as much as can be seen in the figures."""
    own = (bucket.comm_ns or 0) - (bucket.hidden_ns or 0)
    return own - (bucket.exposed_charged_ns or 0) > NOTICEABLE_RATIO * (bucket.comm_ns or 0)


def rank_lines(ranks: Sequence[RankSummary]) -> Iterator[str]:
    """Each rank's typical step, all of it by one clock: the device's where that is known; of many ranks the slowest."""
    if not ranks:
        return
    shown = ranks
    if len(ranks) > MOST_RANKS:
        shown = sorted(ranks, key=lambda rank: -rank.window_ns)[:MOST_RANKS]
    slowest = [f"the {MOST_RANKS} slowest of {len(ranks)}"] if len(ranks) > MOST_RANKS else []
    clock = ["on the device"] if any(millis(rank.window_ns) != millis(rank.wall_ns) for rank in ranks) else []
    remarks = ", ".join(slowest + clock)
    yield "Ranks" + (f"  ({remarks})" if remarks else "")
    remote = any(rank.rpc_wait_ns for rank in ranks)
    heads = f"{'rank':<6} {'step ms':>9} {'compute ms':>11} {'exposed ms':>11} {'idle ms':>9} {'hidden':>7}"
    yield f"  {heads}{'  in remote calls ms' if remote else ''}"
    for rank in shown:
        times = f"{millis(rank.window_ns):>9} {millis(rank.compute_ns):>11} {millis(rank.exposed_comm_ns):>11}"
        calls = f"  {millis(rank.rpc_wait_ns):>18}" if remote else ""
        yield f"  {rank.rank:<6} {times} {millis(rank.idle_ns):>9} {percent(rank.overlap_ratio):>7}{calls}"


def placed(finding: Finding) -> str:
    """With the file that it is about, where it does not say so itself."""
    file = finding.where.rpartition(", ")[2]
    return f"{file}: {finding.message}" if ".json" in file and file not in finding.message else finding.message


def finding_lines(heading: str, findings: Sequence[Finding]) -> Iterator[str]:
    """What several files or ranks have in common is said once."""
    if not findings:
        return
    yield heading
    times = Counter((finding.severity, placed(finding)) for finding in findings)
    for (severity, message), count in itertools.islice(times.items(), MOST_FINDINGS):
        told = printable(message) + (f" ({count} times)" if count > 1 else "")
        yield from textwrap.wrap(told, WIDTH, initial_indent=f"  {severity:<8} ", subsequent_indent=" " * 11)
    if len(times) > MOST_FINDINGS:
        yield f"  … and {len(times) - MOST_FINDINGS} more in the report"
