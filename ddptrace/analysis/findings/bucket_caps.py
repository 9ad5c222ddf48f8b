"""Buckets that are not as large as the program asked for, and what makes them so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.buckets.reducers import ReducerFacts
from ddptrace.analysis.wording import amount, mb
from ddptrace.load.tables import Finding

OVER_MIN_RATIO: Final = 1.25
"""A bucket that is less above the cap is as large as was asked for."""

TOLD: Final = 3
"""Layouts of one reducer, one by one."""

MIB: Final = 2**20
DEFAULT_CAP_NBYTES: Final = 25 * MIB
FIRST_CAP_NBYTES: Final = MIB
"""Of DDP's first bucket, where no cap was given."""


def bucket_cap_findings(reducers: Sequence[ReducerFacts]) -> Iterator[Finding]:
    """Of each reducer once: every rank has the same."""
    for reducer in {reducer.reducer: reducer for reducer in reducers}.values():
        why = _parameter(reducer) if reducer.over_cap else _filled(reducer)
        if why:
            yield Finding("bucket-over-cap", "info", f"reducer {reducer.reducer}", why)


def layout_words(reducer: ReducerFacts) -> str:
    """As in "1 bucket of 9.4 MB, then 4 of 1.1 MB to 4.7 MB"; of many layouts the first ones and the last."""
    told = [_sizes(sizes, " bucket" if at == 0 else "") for at, sizes in enumerate(reducer.sizes)]
    if len(told) > TOLD:
        told[TOLD - 1 : -1] = ["…"]
    return ", then ".join(told) + _first(reducer)


def _sizes(sizes: Sequence[int], what: str) -> str:
    ends = dict.fromkeys((amount(min(sizes, default=0)), amount(max(sizes, default=0))))
    return f"{len(sizes)}{what}{'s' if what and len(sizes) != 1 else ''} of {' to '.join(ends)}"


def _first(reducer: ReducerFacts) -> str:
    """Only a cap that nobody gave leaves the first bucket smaller."""
    sizes, is_default = reducer.sizes[-1], reducer.bucket_cap_nbytes == DEFAULT_CAP_NBYTES
    if is_default and len(sizes) > 1 and FIRST_CAP_NBYTES <= sizes[0] < max(sizes):
        return f"; the first is closed at {amount(FIRST_CAP_NBYTES)}, to begin early, unless bucket_cap_mb is given"
    return ""


def _parameter(reducer: ReducerFacts) -> str:
    """One that alone is larger than a bucket may be."""
    count = len(reducer.over_cap)
    name, nbytes = max(reducer.over_cap, key=lambda parameter: parameter[1])
    more = f" ({count - 1} more parameters do too)" if count > 1 else ""
    return (
        f"Parameter {name} alone has {mb(nbytes)}, more than a bucket may have ({_cap(reducer)}){more}: no smaller cap"
        f" makes its bucket smaller, only splitting the parameter.{_nearly_all(reducer)}"
    )


def _nearly_all(reducer: ReducerFacts) -> str:
    """Where the cap is the mistake, and not the parameter."""
    buckets = len(reducer.sizes[-1]) if reducer.sizes else 0
    if not 2 * len(reducer.over_cap) > buckets > 2:
        return ""
    return f" Most of the {buckets} buckets are such ones: raise bucket_cap_mb (`ddptrace advise` says to what)."


def _filled(reducer: ReducerFacts) -> str:
    cap, filled = reducer.bucket_cap_nbytes, reducer.filled
    if cap is None or filled is None or filled.nbytes <= OVER_MIN_RATIO * cap:
        return ""
    name, nbytes = filled.by
    return (
        f"Bucket {filled.index} has {amount(filled.nbytes)}, {filled.nbytes / cap:.1f} times what was asked for"
        f" ({_cap(reducer)}): a bucket is closed by the gradient that fills it, here {name} with {amount(nbytes)} after"
        f" {amount(filled.nbytes - nbytes)}.{_within(cap, reducer.largest_nbytes)}"
    )


def _within(cap: int, largest: int) -> str:
    """A bucket is larger than the cap by less than its last parameter."""
    least = math.floor((cap - largest) / MIB * 1e4) / 1e4
    return f" bucket_cap_mb={least:g}, less by the largest parameter, keeps all within {amount(cap)}." if least else ""


def _cap(reducer: ReducerFacts) -> str:
    cap = reducer.bucket_cap_nbytes or 0
    return f"bucket_cap_mb={cap / MIB:.3g}, {mb(cap) if cap >= MIB else amount(cap)}"
