"""How many bytes each all-to-all of a rank sends to each rank of its group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from ddptrace.load.records.events import FLAGS, A, B, C, D, E, Row

MOST_RANKS: Final = 1 << 20
"""Of a group; a record that says more is damaged."""


def splits_by_call(rows: Iterable[Row]) -> dict[int, tuple[int, ...]]:
    """Return the bytes by seq, without calls of which a record is missing. `rows`: SPLIT records."""
    even: dict[int, tuple[int, ...]] = {}
    parts: defaultdict[int, dict[int, int]] = defaultdict(dict)
    sizes: dict[int, int] = {}
    for row in rows:
        seq, ranks = row[A], row[E]
        if not 0 < ranks <= MOST_RANKS or min(row[B], row[C]) < 0:
            continue
        if row[FLAGS]:
            even[seq] = (row[B],) * ranks
            continue
        sizes[seq] = ranks
        parts[seq] |= {row[D]: row[B], row[D] + 1: row[C]}
    found = {seq: tuple(parts[seq].get(place, -1) for place in range(ranks)) for seq, ranks in sizes.items()}
    return even | {seq: sent for seq, sent in found.items() if min(sent) >= 0}
