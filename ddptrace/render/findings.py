"""The report's findings, as HTML: first those that say what to do, each with a link to where its numbers stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from ddptrace.findings import Finding, FindingKind, gravest_first
from ddptrace.render.markup import label, section, slug, text
from ddptrace.units import counted

SAME_MAX: Final = 3
NOTES_OPEN_MAX: Final = 2
OPEN: Final = ("error", "warning")
NEXT: Final = "What the numbers below say to change, or to look at first."
REST: Final = "What else stands out, gravest first."


def next_section(findings: Sequence[Finding], there: str) -> str:
    """What to do, in the order in which it is told on the terminal. `there`: the sections that can be linked."""
    items = list(items_of([finding for finding in findings if finding.kind.is_advice], there))
    return section("Look at next", NEXT, listed(items))


def findings_section(findings: Sequence[Finding], there: str) -> str:
    """Of what is only to be known, more than a few notes are folded away."""
    others = gravest_first([finding for finding in findings if not finding.kind.is_advice])
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
        f"{link_html(finding.kind, there)}</li>"
    )


def link_html(kind: FindingKind, there: str) -> str:
    """Link the first of the kind's sections that the report has."""
    for title in kind.sections:
        if f'<section id="{slug(title)}">' in there:
            return f'<a class="see" href="#{slug(title)}">{escape(title)}</a>'
    return ""
