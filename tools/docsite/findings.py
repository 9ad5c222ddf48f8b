"""The page of findings: every kind, by chapter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddptrace.findings import KINDS, SEVERITIES, Chapter, FindingKind

INTRODUCTIONS: Final = {Chapter.COMPARISONS: "`ddptrace diff` has findings of its own:"}
HEAD: Final = "| code | severity | meaning | what to do |\n|---|---|---|---|"


def severities() -> str:
    """Write the severities and their meanings as a Markdown table, the gravest first."""
    rows = [f"| `{severity}` | {meaning} |" for severity, meaning in SEVERITIES.items()]
    return "\n".join(["| severity | meaning |", "|---|---|", *rows])


def findings() -> str:
    """Write all kinds as Markdown: a heading and a table for each chapter."""
    return "\n\n".join(part for chapter in Chapter for part in _chapter(chapter))


def _chapter(chapter: Chapter) -> Iterator[str]:
    yield f"## {chapter}"
    if chapter in INTRODUCTIONS:
        yield INTRODUCTIONS[chapter]
    yield "\n".join([HEAD, *(_row(kind) for kind in KINDS.values() if kind.chapter is chapter)])


def _row(kind: FindingKind) -> str:
    severity = " or ".join((kind.severity, *kind.also))
    return f"| `{kind.code}` | {severity} | {kind.meaning} | {kind.to_do} |"
