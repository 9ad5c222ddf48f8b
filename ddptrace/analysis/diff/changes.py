"""Each quantity's change, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.diff.figures import Floats
from ddptrace.analysis.diff.rotation import against_chance
from ddptrace.analysis.diff.tables import Basis, Change, Quantity

ALPHA: Final = 0.05
STEP_SHARE: Final = 0.8
"""Of `ALPHA`, that the step has to itself. All others share the rest, and where the step has changed, all of it: so
that all together are wrong about equal sides in 5 % of cases, and looking at many costs the step little."""


@dataclass(frozen=True, slots=True)
class Units:
    """What varies by chance: one row per unit, one column per quantity, the step first."""

    basis: Basis
    values: Floats
    is_after: NDArray[np.bool_]
    pair: NDArray[np.int64] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        if self.basis == "pairs":
            return len(self.values) // 2, len(self.values) // 2
        after = int(self.is_after.sum())
        return len(self.values) - after, after


@dataclass(frozen=True, slots=True)
class _Chance:
    """Of one quantity; None where nothing tells of chance."""

    reach_ns: float | None = None
    p: float | None = None
    adjusted_p: float | None = None
    is_sure: bool = False


def changes(quantities: Sequence[Quantity], before: Floats, after: Floats, units: Units) -> Iterator[Change]:
    """`before` and `after`: ns, by quantity, the step first."""
    for what, first, second, chance in zip(quantities, before, after, _chances(units, len(quantities)), strict=True):
        yield _change(what, float(first), float(second), float(before[0]), chance)


def _chances(units: Units, count: int) -> list[_Chance]:
    step = against_chance(units.values[:, :1], units.is_after, units.pair) if len(units.values) else None
    if step is None:
        return [_Chance()] * count
    joint_p = step.p / STEP_SHARE
    reach, p = step.reach, step.p
    rest = against_chance(units.values[:, 1:], units.is_after, units.pair)
    if rest is not None:
        share = 1.0 if joint_p[0] < ALPHA else 1 - STEP_SHARE
        joint_p = np.concatenate([joint_p, rest.joint_p / share])
        reach, p = np.concatenate([reach, rest.reach]), np.concatenate([p, rest.p])
    by_runs = units.basis != "blocks"
    return [
        _Chance(float(near), float(alone), min(1.0, float(joint)), by_runs and bool(joint < ALPHA))
        for near, alone, joint in zip(reach, p, joint_p, strict=True)
    ]


def _change(what: Quantity, before: float, after: float, step: float, chance: _Chance) -> Change:
    change, bucket, reach = round(after) - round(before), what.bucket, chance.reach_ns
    return Change(
        what.kind, what.name,
        reducer=None if bucket is None else bucket.reducer, layout=None if bucket is None else bucket.layout,
        index=None if bucket is None else bucket.index, nbytes=None if bucket is None else bucket.nbytes,
        parameters=() if bucket is None else bucket.parameters, rank=what.rank,
        before_ns=round(before), after_ns=round(after), change_ns=change,
        change_ratio=change / before if before else None, step_ratio=change / step if step else None,
        low_ns=None if reach is None else round(change - reach),
        high_ns=None if reach is None else round(change + reach),
        p=chance.p, adjusted_p=chance.adjusted_p, is_sure=chance.is_sure,
    )  # fmt: skip
