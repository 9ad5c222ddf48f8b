"""Findings that many ranks' files have in common, each told once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ddptrace.findings import Finding
from ddptrace.units import named

OF_FILE: Final = re.compile(r"rank (\d+), .+")
COUNT: Final = re.compile(r"(\d+) ")
"""What a message begins with that counts something in its file."""


def of_several_files(findings: Sequence[Finding]) -> list[Finding]:
    """Join findings about files of different ranks that differ in nothing but a count at their begin: it becomes a
    range. Each stands where the first of them stood."""
    alike: dict[tuple[str, str, str], list[tuple[int | None, Finding]]] = {}
    for position, finding in enumerate(findings):
        match = OF_FILE.fullmatch(finding.where)
        rank = int(match[1]) if match else None
        own = "" if match else str(position)  # alone, and not joined
        alike.setdefault((finding.code, finding.severity, own + COUNT.sub("# ", finding.message, 1)), []).append(
            (rank, finding)
        )
    return [_joined(group) for group in alike.values()]


def _joined(group: Sequence[tuple[int | None, Finding]]) -> Finding:
    ranks = sorted({rank for rank, _ in group if rank is not None})
    first = group[0][1]
    if len(ranks) < 2:
        return first
    where = named("rank", ranks)
    counts = [int(match[1]) for _, finding in group if (match := COUNT.match(finding.message))]
    low, high = min(counts, default=0), max(counts, default=0)
    told = first.message if low == high else COUNT.sub(f"{low} to {high} ", first.message, 1)
    return replace(first, where=where, message=f"on each of {where}, {told}")
