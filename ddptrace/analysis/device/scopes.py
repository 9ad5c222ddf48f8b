"""Device time by what the host was doing when it launched the work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_view import View
from ddptrace.analysis.tables.device import ScopeRow
from ddptrace.load.tables import DeviceWork, Work

KINDS: Final = ("module", "annotation", "operator")


def scope_rows(view: View) -> list[ScopeRow]:
    """Modules, then annotations, then operators; of each kind the most device time first."""
    rows = [row for kind in KINDS for row in _of_kind(view, kind)]
    return sorted(
        rows, key=lambda row: (KINDS.index(row.kind), -row.compute_ns - row.comm_ns - row.memory_ns, row.name)
    )


def _of_kind(view: View, kind: str) -> Iterator[ScopeRow]:
    """All windows together, by name: window by window each has its own numbers."""
    totals: dict[str, Ints] = defaultdict(lambda: np.zeros(1 + len(Work), np.int64))
    for window in view.device.profiled:
        for name, row in zip(window.work.names, _sums(window.work, getattr(window.work, kind)), strict=True):
            if row[0]:
                totals[name] += row
    for name, row in totals.items():
        events, compute_ns, comm_ns, memory_ns = row.tolist()
        yield ScopeRow(view.rank.rank, kind, name, events, compute_ns, comm_ns, memory_ns)


def _sums(work: DeviceWork, scope: Ints) -> Ints:
    """By name: number of events, then their nanoseconds by `Work`; shape (names, 4)."""
    sums = np.zeros((len(work.names), 1 + len(Work)), np.int64)
    known = scope >= 0
    names, kinds = scope[known], work.kind[known].astype(np.int64)
    np.add.at(sums, (names, np.zeros_like(kinds)), 1)
    np.add.at(sums, (names, 1 + kinds), (work.end_at_ns - work.begin_at_ns)[known])
    return sums
