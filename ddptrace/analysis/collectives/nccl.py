"""What NCCL says of its collectives, by function and size: how it carried them out, beside how fast they were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

from ddptrace.analysis.tables.collectives import CollectiveRow, NcclRow
from ddptrace.load.tables import NcclChoice, NcclTime, NcclTold
from ddptrace.ops import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    GATHER,
    RECEIVE,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SEND,
    Family,
    family_of,
)

FUNCTIONS: Final[Mapping[Family, str]] = {
    ALL_REDUCE: "AllReduce",
    ALL_GATHER: "AllGather",
    REDUCE_SCATTER: "ReduceScatter",
    BROADCAST: "Broadcast",
    REDUCE: "Reduce",
    ALL_TO_ALL: "AlltoAll",
    GATHER: "Gather",
    SCATTER: "Scatter",
    SEND: "Send",
    RECEIVE: "Recv",
}
BY_PART: Final = (ALL_GATHER, REDUCE_SCATTER)
"""NCCL counts the bytes of one rank's part, ddptrace those of the whole."""
Key = tuple[str, int]


def nccl_rows(told: NcclTold, run: Iterable[CollectiveRow] = ()) -> list[NcclRow]:
    """Return the table, by function and size. `run`: collectives of the same job, whose bandwidth stands beside."""
    chosen: dict[Key, list[NcclChoice]] = defaultdict(list)
    for choice in told.choices:
        chosen[choice.function, choice.nbytes].append(choice)
    timed: dict[Key, list[NcclTime]] = defaultdict(list)
    for time in told.times:
        timed[time.function, time.nbytes].append(time)
    keys = sorted(chosen.keys() | timed.keys())
    rates = _rates(run) if keys else {}
    return [row for key in keys for row in _rows(key, chosen[key], told.choices, timed[key], rates.get(key))]


def _rows(
    key: Key,
    chosen: Sequence[NcclChoice],
    counts: Mapping[NcclChoice, int],
    timed: Sequence[NcclTime],
    rate: float | None,
) -> Iterator[NcclRow]:
    ranks, sources = {time.ranks for time in timed}, sorted({time.source for time in timed if time.source})
    row = NcclRow(
        function=key[0],
        nbytes=key[1],
        algorithm=None,
        protocol=None,
        channels=None,
        chosen=0,
        timed=len(timed),
        ranks=ranks.pop() if len(ranks) == 1 else None,
        mean_ns=_mean(time.took_ns for time in timed),
        algbw_bytes_per_s=_mean(time.algbw_bytes_per_s for time in timed),
        busbw_bytes_per_s=_mean(time.busbw_bytes_per_s for time in timed),
        timing_source=", ".join(sources) or None,
        run_busbw_bytes_per_s=rate,
    )
    if not chosen:
        yield row
    for one in sorted(chosen, key=lambda choice: (-counts[choice], choice.algorithm, choice.protocol)):
        how: dict[str, Any] = {"algorithm": one.algorithm, "protocol": one.protocol or None, "channels": one.channels}
        yield replace(row, **how, chosen=counts[one])


def _rates(run: Iterable[CollectiveRow]) -> dict[Key, float]:
    """Mean bus bandwidth by NCCL's function and bytes."""
    found: dict[Key, list[float]] = defaultdict(list)
    for row in run:
        family = family_of(row.op)
        function, rate = FUNCTIONS.get(family), row.busbw_bytes_per_s
        if function is None or rate is None or row.nbytes is None or (family in BY_PART and not row.group_size):
            continue
        parts = row.group_size or 1 if family in BY_PART else 1
        found[function, row.nbytes // parts].append(rate)
    return {key: fmean(rates) for key, rates in found.items()}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
