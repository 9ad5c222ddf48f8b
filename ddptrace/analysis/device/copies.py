"""What copies and fills cost: how long they ran, how long nothing else did, and how long they held the host.

thread      ├── cudaMemcpyAsync ──────────┤          of pageable memory: blocked until the copy is over
device        ▒▒▒ gemm ▒▒▒│      │▓ copy ▓│
exposed                          |--------|          the copy ran, and no kernel
blocked     |-----------------------------|
idle                      |------|                   the host was blocked, and nothing ran
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.device.steps import device_spans
from ddptrace.analysis.intervals import Ints, Measure, pairs, subtract, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.device import CopyRow, IdleRow
from ddptrace.load.tables import DeviceWork, Work

PAGEABLE: Final = "Pageable"
"""How CUPTI names host memory that is not pinned, as in `Memcpy HtoD (Pageable -> Device)`."""
NS_PER_S: Final = 1e9


def copy_rows(view: RankView) -> list[CopyRow]:
    """The windows whole, then step by step; of each the longest first."""
    works = [window.work for window in view.device.profiled]
    names = dict.fromkeys(name for work in works for name in _copied(work))
    kinds = [_Copies(name, works) for name in names]
    kernels = union(*(device_spans(work, work.kind != Work.MEMORY) for work in works))
    busy = union(kernels, *(device_spans(work, work.kind == Work.MEMORY) for work in works))
    steps = np.flatnonzero(view.device.on_device)
    rows = [row for kind in kinds for row in kind.rows(view, steps, kernels, busy)]
    return sorted(rows, key=lambda row: (row.step is not None, row.step or 0, -row.copy_ns, row.name))


def _copied(work: DeviceWork) -> Iterator[str]:
    return (work.names[name] for name in np.unique(work.name[work.kind == Work.MEMORY]).tolist())


class _Copies:
    """All copies or fills of one name, over all windows."""

    def __init__(self, name: str, works: list[DeviceWork]) -> None:
        self.name = name
        self.is_pageable = PAGEABLE in name
        mine = [(work, _named(work, name)) for work in works]
        self.spans = np.concatenate([device_spans(work, chosen) for work, chosen in mine])
        self.nbytes = np.concatenate([_nbytes(work)[chosen] for work, chosen in mine])
        calls = [
            np.column_stack((work.launch_begin_at_ns, work.launch_end_at_ns))[chosen & work.launched]
            for work, chosen in mine
        ]
        self.blocked = union(*calls) if self.is_pageable else pairs([])

    def rows(self, view: RankView, steps: Ints, kernels: NDArray[np.int64], busy: NDArray[np.int64]) -> list[CopyRow]:
        """Device time counts in a step's window, and time of the host between the step's begin and end there."""
        exposed, blocked = Measure(subtract(union(self.spans), kernels)), Measure(self.blocked)
        blocked_idle = Measure(subtract(self.blocked, busy))
        at = view.windows.at(self.spans[:, 0])
        order = np.argsort(at, kind="stable")
        first, last = (np.searchsorted(at[order], steps, side=side) for side in ("left", "right"))
        device, host = (np.concatenate((EVER, part.spans()[steps])) for part in (view.windows, view.steps))
        within = [
            part.within(span[:, 0], span[:, 1]).tolist()
            for part, span in ((exposed, device), (blocked, host), (blocked_idle, host))
        ]
        areas = [order, *(order[begin:end] for begin, end in zip(first, last, strict=True))]
        return [
            CopyRow(view.rank.rank, view.ordinal(step), *self._figures(mine), *ns)
            for step, mine, *ns in zip((-1, *steps.tolist()), areas, *within, strict=True)
            if len(mine) or any(ns)
        ]

    def _figures(self, mine: Ints) -> tuple[str, bool, int, int | None, int, float | None]:
        copy_ns = int((self.spans[mine, 1] - self.spans[mine, 0]).sum())
        told = len(mine) > 0 and bool((self.nbytes[mine] >= 0).all())
        nbytes = sum(self.nbytes[mine].tolist()) if told else None
        rate = nbytes / copy_ns * NS_PER_S if nbytes is not None and copy_ns else None
        return self.name, self.is_pageable, len(mine), nbytes, copy_ns, rate


EVER: Final = pairs([(-(2**62), 2**62)])
"""All instants: the windows whole."""


def _named(work: DeviceWork, name: str) -> NDArray[np.bool_]:
    numbers = [number for number, text in enumerate(work.names) if text == name]
    chosen: NDArray[np.bool_] = (work.kind == Work.MEMORY) & np.isin(work.name, numbers)
    return chosen


def _nbytes(work: DeviceWork) -> Ints:
    return np.full(len(work.kind), -1) if work.counts is None else work.counts.nbytes


def as_copies(idle: Collection[IdleRow], copies: Collection[CopyRow]) -> list[IdleRow]:
    """Charge idle time with work queued to a copy where the host is in one of pageable memory: that is what waits."""
    held_ns = Counter[tuple[int, int | None]]()
    for copy in copies:
        held_ns[copy.rank, copy.step] += copy.blocked_idle_ns
    return [
        replace(row, cause="copy")
        if row.cause == "queued" and is_in_copy(row) and 2 * held_ns[row.rank, row.step] >= row.idle_ns
        else row
        for row in idle
    ]


def is_in_copy(row: IdleRow) -> bool:
    """Whether the host was in a call that copies."""
    return row.cause in ("copy", "queued") and "memcpy" in row.name.lower()


# What they cost, for a reader -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyDigest:
    """Copies or fills of one name on a rank: means over its steps that tell, or all of its windows where none does."""

    rank: int
    name: str
    pageable: bool
    events: float
    nbytes: int | None
    copy_ns: int
    exposed_ns: int
    blocked_ns: int
    blocked_idle_ns: int

    @property
    def nbytes_per_s(self) -> float | None:
        return None if self.nbytes is None or not self.copy_ns else self.nbytes / self.copy_ns * NS_PER_S

    @property
    def cost_ns(self) -> int:
        """What it may cost at most: the longer of what is exposed, and of what the host is held while nothing runs."""
        return max(self.exposed_ns, self.blocked_idle_ns)


def copy_digest(rows: Collection[CopyRow], steps: Mapping[int, Collection[int]]) -> list[CopyDigest]:
    """By rank, and of each rank the costliest first. `steps`: by rank, those that count; none for the windows whole."""
    chosen: defaultdict[tuple[int, str], list[CopyRow]] = defaultdict(list)
    for row in rows:
        if row.step in steps[row.rank] if steps.get(row.rank) else row.step is None:
            chosen[row.rank, row.name].append(row)
    found = [_digest(mine, len(steps.get(rank, ())) or 1) for (rank, _), mine in chosen.items()]
    return sorted(found, key=lambda digest: (digest.rank, -digest.cost_ns, digest.name))


def _digest(rows: list[CopyRow], count: int) -> CopyDigest:
    sizes = [row.nbytes for row in rows if row.events]
    known = [nbytes for nbytes in sizes if nbytes is not None]
    return CopyDigest(
        rows[0].rank,
        rows[0].name,
        rows[0].pageable,
        sum(row.events for row in rows) / count,
        round(sum(known) / count) if len(known) == len(sizes) else None,
        *(
            round(sum(getattr(row, column) for row in rows) / count)
            for column in ("copy_ns", "exposed_ns", "blocked_ns", "blocked_idle_ns")
        ),
    )
