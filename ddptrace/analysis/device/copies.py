"""What copies and fills cost: how long they ran, how long nothing else did, and how long they held the host.

thread      ├── cudaMemcpyAsync ──────────┤          of pageable memory: blocked until the copy is over
device        ▒▒▒ gemm ▒▒▒│      │▓ copy ▓│
exposed                          |--------|          the copy ran, and no kernel
blocked     |-----------------------------|
idle                      |------|                   the host was blocked, and nothing ran
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.device.populations import device_spans
from ddptrace.analysis.intervals import Ints, Measure, pairs, subtract, union
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.device import CopyRow
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
        areas = [
            (-1, np.ones(len(self.spans), np.bool_), (EVER, EVER)),
            *((step, at == step, (view.windows.spans()[step], view.steps.spans()[step])) for step in steps.tolist()),
        ]
        rows = []
        for step, mine, (device, host) in areas:
            within = [
                int(part.within(*span[:, None])[0])
                for part, span in ((exposed, device), (blocked, host), (blocked_idle, host))
            ]
            if mine.any() or any(within):
                rows.append(CopyRow(view.rank.rank, view.ordinal(step), *self._figures(mine), *within))
        return rows

    def _figures(self, mine: NDArray[np.bool_]) -> tuple[str, bool, int, int | None, int, float | None]:
        copy_ns = int((self.spans[mine, 1] - self.spans[mine, 0]).sum())
        told = bool((self.nbytes[mine] >= 0).all()) and bool(mine.any())
        nbytes = sum(self.nbytes[mine].tolist()) if told else None
        rate = nbytes / copy_ns * NS_PER_S if nbytes is not None and copy_ns else None
        return self.name, self.is_pageable, int(mine.sum()), nbytes, copy_ns, rate


EVER: Final = np.array([-(2**62), 2**62])


def _named(work: DeviceWork, name: str) -> NDArray[np.bool_]:
    numbers = [number for number, text in enumerate(work.names) if text == name]
    chosen: NDArray[np.bool_] = (work.kind == Work.MEMORY) & np.isin(work.name, numbers)
    return chosen


def _nbytes(work: DeviceWork) -> Ints:
    return np.full(len(work.kind), -1) if work.counts is None else work.counts.nbytes
