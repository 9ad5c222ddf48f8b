"""Each quantity's change, and how sure it is.

Runs of equal sides differ too, and their quantities together: a slow machine stretches every phase. What is left of
the runs when their common mean (or that of each pair) is taken away is, if the sides are equal, as likely in any other
direction of the space of runs as in the one that tells the sides apart. So the observed difference is held against
those in random directions: a rotation test (Langsrud, Statistics and Computing 15, 2005). Of one quantity alone it is
Student's test; of many, the largest of all in each direction tells how large the largest becomes by chance, with no
assumption about how they go together. A permutation test of 3 runs against 3 could never be sure; this can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.diff.one_run import Floats
from ddptrace.analysis.diff.tables import Basis, Change, Quantity
from ddptrace.analysis.statistics import student_quantile

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
        what.kind,
        what.name,
        reducer=None if bucket is None else bucket.reducer,
        layout=None if bucket is None else bucket.layout,
        index=None if bucket is None else bucket.index,
        nbytes=None if bucket is None else bucket.nbytes,
        parameters=() if bucket is None else bucket.parameters,
        rank=what.rank,
        before_ns=round(before),
        after_ns=round(after),
        change_ns=change,
        change_ratio=change / before if before else None,
        step_ratio=change / step if step else None,
        low_ns=None if reach is None else round(change - reach),
        high_ns=None if reach is None else round(change + reach),
        p=chance.p,
        adjusted_p=chance.adjusted_p,
        is_sure=chance.is_sure,
        op=None if what.collective is None else what.collective.op,
        origin=None if what.collective is None else what.collective.origin,
        unit=None if what.unit is None else what.unit.name,
        role=None if what.unit is None else what.unit.role,
        phase=None if what.unit is None else what.unit.phase,
    )


# A rotation test ------------------------------------------------------------------------------------------------------


ROTATIONS: Final = 9_999
PIECE: Final = 1_000
"""Of rotations at a time, to keep memory low."""
NEGLIGIBLE: Final = 1e-9
"""Of a quantity's own size: less is not a difference but arithmetic."""


@dataclass(frozen=True, slots=True)
class Tested:
    """By quantity. `reach`: of the 95 % interval around the change, to either side; `p` and `joint_p`: how often chance
    makes as much of it, and of any quantity (step-down, Westfall and Young)."""

    reach: Floats
    p: Floats
    joint_p: Floats


def against_chance(values: Floats, is_after: NDArray[np.bool_], pair: NDArray[np.int64] | None) -> Tested | None:
    """`values`: one row per run, one column per quantity; `pair`: of each run, where those of a pair are compared.
    None where too few runs are left to tell of chance."""
    basis = _complement(np.zeros(len(values), np.int64) if pair is None else pair)
    freedom = basis.shape[1] - 1
    if freedom < 1 or not values.shape[1]:
        return None
    left, contrast = basis.T @ values, basis.T @ is_after.astype(np.float64)
    length = float(np.linalg.norm(contrast))
    size = np.linalg.norm(left, axis=0)
    size[size <= NEGLIGIBLE * np.abs(values).max(axis=0)] = 0.0
    unit = np.divide(left, size, out=np.zeros_like(left), where=size > 0)
    seen = np.abs(contrast / length @ unit).clip(0, 1)
    error = size * np.sqrt(1 - seen**2) / freedom**0.5 / length
    return Tested(student_quantile(freedom, 1 - ALPHA / 2) * error, *_by_chance(seen, unit))


def _complement(group: NDArray[np.int64]) -> Floats:
    """An orthonormal basis of what the runs are beside the mean of each group: one column per dimension."""
    member = (group[:, None] == np.unique(group)[None, :]).astype(np.float64)
    whole, _ = np.linalg.qr(member, mode="complete")
    return np.asarray(whole[:, member.shape[1] :], np.float64)


def _by_chance(seen: Floats, unit: Floats) -> tuple[Floats, Floats]:
    """p and joint p of each quantity."""
    order = np.argsort(-seen, kind="stable")
    alone, jointly = np.zeros(len(seen)), np.zeros(len(seen))
    random = np.random.default_rng(0)  # the same runs give the same answer
    for begin in range(0, ROTATIONS, PIECE):
        directions = random.standard_normal((min(PIECE, ROTATIONS - begin), len(unit)))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        found = np.abs(directions @ unit[:, order])
        alone += (found >= seen[order]).sum(axis=0)
        largest = np.maximum.accumulate(found[:, ::-1], axis=1)[:, ::-1]
        jointly += (largest >= seen[order]).sum(axis=0)
    p, joint = np.empty_like(alone), np.empty_like(alone)
    p[order] = (alone + 1) / (ROTATIONS + 1)
    joint[order] = np.maximum.accumulate((jointly + 1) / (ROTATIONS + 1))
    return p, joint
