"""How long a collective itself ran, by a traced run in which every step calls it once with each size."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ddptrace.analysis.collectives.execution import weakest
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.bench.collectives.ops import OPS
from ddptrace.bench.traced import analysis
from ddptrace.schema import Evidence

SEEN: Final = (Evidence.BACKEND, Evidence.DEVICE)
"""What tells when a collective really ran."""


def exec_times(run: Path, name: str, sizes: Sequence[int]) -> dict[int, tuple[int, str]]:
    """By size: execution on the slowest rank, the median over the steps, and its evidence."""
    return by_size(analysis(run).collectives, OPS[name].traced, sizes)


def by_size(rows: Iterable[CollectiveRow], ops: Sequence[str], sizes: Sequence[int]) -> dict[int, tuple[int, str]]:
    """The k-th call of a step is of the k-th size: bytes do not tell, since ranks may hold a part only. A step that is
    not wholly in the window does not count."""
    steps: dict[tuple[int, int], list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        if row.op in ops and row.step is not None and row.comm_ns is not None and row.evidence in SEEN:
            steps[row.rank, row.step].append(row)
    found: dict[int, dict[int, list[CollectiveRow]]] = defaultdict(lambda: defaultdict(list))
    for (_, step), mine in steps.items():
        if len(mine) == len(sizes):
            for nbytes, row in zip(sizes, sorted(mine, key=lambda row: row.seq), strict=True):
                found[nbytes][step].append(row)
    return {nbytes: _of_size(by_step) for nbytes, by_step in found.items()}


def _of_size(by_step: dict[int, list[CollectiveRow]]) -> tuple[int, str]:
    slowest = [max(row.comm_ns or 0 for row in rows) for rows in by_step.values()]
    evidence = weakest(row.evidence for rows in by_step.values() for row in rows)
    return round(statistics.median(slowest)), "" if evidence is None else evidence.value
