"""What held the host while the device was idle, by step: the pieces of `DeviceIdle`, added up.

step windows  |---- 3 ----|---- 4 ----|
gap                    |=====|                cut where a step's window ends
pieces                 copy op              row of step 3: copy, row of step 4: op
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.device import IdleRow
from ddptrace.load.tables import DeviceIdle, IdleCause

ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


def idle_rows(view: RankView) -> list[IdleRow]:
    """Add up the idle time of a rank's device by step, cause, name and operator, the longest of a step first.

    The rows of one step add up to `idle_ns` of its row in `launches`.
    """
    rows = [row for window in view.rank.windows if window.idle is not None for row in _rows(view, window.idle)]
    return sorted(rows, key=lambda row: (row.step is None, row.step or 0, -row.idle_ns, row.cause, row.name))


def _rows(view: RankView, idle: DeviceIdle) -> Iterator[IdleRow]:
    piece, begins, ends = view.windows.split(idle.begin_at_ns, idle.end_at_ns)
    full = ends > begins
    piece, begins, ends = piece[full], begins[full], ends[full]
    names, labels = _labels(idle)
    columns = view.windows.at(begins), idle.cause[piece].astype(np.int64), labels[idle.name[piece]]
    keys, row = np.unique(np.column_stack((*columns, labels[idle.operator[piece]])), axis=0, return_inverse=True)
    row = row.reshape(-1)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, row, ends - begins)
    gap_ns = idle.gaps[:, 1] - idle.gaps[:, 0]
    in_gaps = np.unique(np.column_stack((row, idle.gap[piece])), axis=0)
    first = np.searchsorted(in_gaps[:, 0], np.arange(len(keys) + 1))
    for nth, (step, cause, name, operator) in enumerate(keys.tolist()):
        lengths = gap_ns[in_gaps[first[nth] : first[nth + 1], 1]]
        yield IdleRow(
            view.rank.rank,
            view.ordinal(step),
            IdleCause(cause).word,
            names[name],
            names[operator],
            len(lengths),
            int(total[nth]),
            int(np.sort(lengths)[(len(lengths) - 1) // 2]),
        )


def _labels(idle: DeviceIdle) -> tuple[list[str], Ints]:
    """The names without addresses of objects, each once, and by index into the file's names which of them it is. The
    last index, which is NOTHING's own, is the empty name."""
    used = np.unique(np.concatenate((idle.name, idle.operator)))
    names = {"": 0}
    labels = np.zeros(len(idle.names) + 1, np.int64)
    for index in used[used >= 0].tolist():
        labels[index] = names.setdefault(ADDRESS.sub("", idle.names[index]), len(names))
    return list(names), labels
