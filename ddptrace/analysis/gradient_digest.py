"""What each reducer sent of its gradients, beside what it should have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from ddptrace.analysis.tables import GradientTrafficRow


@dataclass(frozen=True, slots=True)
class GradientDigest:
    """One reducer: means over the rank-steps in which it got gradients."""

    reducer: int  # number of the reducer
    name: str  # as in "DistributedDataParallel of Net"
    rank_steps: int  # (rank, step) pairs that it got gradients in
    gradient_nbytes: int  # of all parameters in its buckets
    backwards: float  # backwards that gave it gradients
    synchronised: float  # of these, backwards that sent gradients
    expected_nbytes: int  # its gradients, once in each synchronised backward
    nbytes: int | None  # of tensors handed to its collectives; None where a hook went without
    sent_ratio: float | None  # nbytes / expected; None where nothing was to be sent
    dtypes: tuple[str, ...]  # of the tensors that were sent
    hooks: tuple[str, ...]  # the user's communication hooks
    parameter_dtypes: tuple[str, ...]  # of the parameters in its buckets


def gradients(rows: Iterable[GradientTrafficRow]) -> tuple[GradientDigest, ...]:
    """By reducer."""
    by_reducer: defaultdict[tuple[int, str], list[GradientTrafficRow]] = defaultdict(list)
    for row in rows:
        by_reducer[row.reducer, row.name].append(row)
    return tuple(_digest(mine) for _, mine in sorted(by_reducer.items()))


def _digest(rows: Sequence[GradientTrafficRow]) -> GradientDigest:
    first = rows[0]
    expected = sum(row.gradient_nbytes * row.synchronised for row in rows)
    known = [row.nbytes for row in rows if row.nbytes is not None]
    seen = sum(known) if len(known) == len(rows) else None
    return GradientDigest(
        first.reducer, first.name, len(rows), round(mean(row.gradient_nbytes for row in rows)),
        backwards=mean(row.backwards for row in rows), synchronised=mean(row.synchronised for row in rows),
        expected_nbytes=round(expected / len(rows)), nbytes=None if seen is None else round(seen / len(rows)),
        sent_ratio=seen / expected if seen is not None and expected else None,
        dtypes=tuple(sorted({dtype for row in rows for dtype in row.dtypes})),
        hooks=tuple(sorted({row.hook for row in rows if row.hook is not None})),
        parameter_dtypes=tuple(sorted({dtype for row in rows for dtype in row.parameter_dtypes})),
    )  # fmt: skip
