"""The report's findings, as HTML: first those that say what to do, each with a link to where its numbers stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from ddptrace.load.tables import Finding
from ddptrace.render.buckets import TYPICAL
from ddptrace.render.markup import label, section, slug, text
from ddptrace.render.terminal import ADVICE
from ddptrace.render.words import counted, gravest_first

SAME_MAX: Final = 3
NOTES_OPEN_MAX: Final = 2
OPEN: Final = ("error", "warning")
NEXT: Final = "What the numbers below say to change, or to look at first."
REST: Final = "What else stands out, gravest first."

SHOWN_IN: Final[Mapping[str, tuple[str, ...]]] = {
    "Exposed time per bucket": (
        "exposed-bucket", "bucket-over-cap", "layout-rebuilt", "bucket-layout-unknown", "buckets-by-order",
        "heavy-layer",
    ),
    TYPICAL: ("well-hidden",),
    "Ranks that the others wait for": (
        "late-rank", "run-too-short", "waiting-for-ranks", "processors-crowded", "slow-link",
    ),
    "The same collective on all ranks": (
        "waiting-for-ranks", "slow-link", "slow-message", "match-refused", "replay-off", "rank-behind",
    ),
    "Ranks": ("late-rank", "run-too-short", "processors-crowded"),
    "Collectives": ("exposed-communication", "queued", "slow-message", "desync", "collective-failed"),
    "Does the host keep up?": ("launch-bound",),
    "Remote calls": ("waiting-for-remote-calls", "only-remote"),
    "What varies from step to step": ("jitter",),
    "Computing beside communication": ("contention",),
    "Traffic": (
        "synchronised-often", "synchronised-never", "synchronised-early", "messages-differ", "find-unused-parameters",
    ),
    "Every step": ("paused-steps", "steps-by-backward", "optimizers-in-turn", "jitter"),
    "Clocks": ("clock-disagrees", "clock-not-fitted", "clock-by-pairs", "clock-bent"),
    "Device time": ("without-launch", "outside-window"),
    "What was measured, and how": ("device-unseen", "coarse-compute", "approximate-overlap", "profiled-steps-differ"),
    "What was not": (
        "unknown-exec", "rank-missing", "records-dropped", "records-torn", "records-let-go", "steps-not-recorded",
        "tap-failed", "surface-failed", "process-died",
    ),
}  # fmt: skip
"""By a section's title, the findings whose numbers stand there. Of several the first that the report has is linked."""


def next_section(findings: Sequence[Finding], there: str) -> str:
    """What to do, in the order in which it is told on the terminal. `there`: the sections that can be linked."""
    items = list(items_of([finding for finding in findings if finding.code in ADVICE], there))
    return section("Look at next", NEXT, listed(items))


def findings_section(findings: Sequence[Finding], there: str) -> str:
    """Of what is only to be known, more than a few notes are folded away."""
    others = gravest_first([finding for finding in findings if finding.code not in ADVICE])
    grave = list(items_of([finding for finding in others if finding.severity in OPEN], there))
    notes = list(items_of([finding for finding in others if finding.severity not in OPEN], there))
    return section("Findings", REST, listed(grave), listed(notes, folded=len(notes) > NOTES_OPEN_MAX))


def listed(items: Sequence[str], folded: bool = False) -> str:
    if not items:
        return ""
    whole = f'<ul class="findings">{"".join(items)}</ul>'
    return f"<details><summary>{counted(len(items), 'note')}</summary>{whole}</details>" if folded else whole


def items_of(findings: Sequence[Finding], there: str) -> Iterator[str]:
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
    tone = finding.severity if finding.severity in OPEN else "info"
    return (
        f'<li class="{tone}"><span class="severity">{label(finding.severity)}</span>'
        f'<span class="where">{label(finding.where)}</span><p>{text(finding.message)}</p>'
        f"{link_html(finding.code, there)}</li>"
    )


def link_html(code: str, there: str) -> str:
    for title, codes in SHOWN_IN.items():
        if code in codes and f'<section id="{slug(title)}">' in there:
            return f'<a class="see" href="#{slug(title)}">{escape(title)}</a>'
    return ""
