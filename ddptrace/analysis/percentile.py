"""One definition of percentiles, for every table: a value that was measured, never one between two."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the least of some ascending values that `percent` of 100 of them do not exceed. There is one at least."""
    return int(ordered[-(-percent * len(ordered) // 100) - 1])
