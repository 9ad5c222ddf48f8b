"""Whether two groups of runs differ by more than chance, in many quantities at once.

Runs of equal sides differ too, and their quantities together: a slow machine stretches every phase. What is left of
the runs when their common mean (or that of each pair) is taken away is, if the sides are equal, as likely in any other
direction of the space of runs as in the one that tells the sides apart. So the observed difference is held against
those in random directions: a rotation test (Langsrud, Statistics and Computing 15, 2005). Of one quantity alone it is
Student's test; of many, the largest of all in each direction tells how large the largest becomes by chance, with no
assumption about how they go together. A permutation test of 3 runs against 3 could never be sure; this can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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
    p, joint_p, usual = _by_chance(seen, unit)
    rest = size * np.sqrt(1 - seen**2)
    return Tested(usual / np.sqrt(1 - usual**2) * rest / length, p, joint_p)


def _complement(group: NDArray[np.int64]) -> Floats:
    """An orthonormal basis of what the runs are beside the mean of each group: one column per dimension."""
    member = (group[:, None] == np.unique(group)[None, :]).astype(np.float64)
    whole, _ = np.linalg.qr(member, mode="complete")
    return np.asarray(whole[:, member.shape[1] :], np.float64)


def _by_chance(seen: Floats, unit: Floats) -> tuple[Floats, Floats, float]:
    """p and joint p of each quantity, and what one alone exceeds in 5 % of all directions."""
    order = np.argsort(-seen, kind="stable")
    alone, jointly, coordinates = np.zeros(len(seen)), np.zeros(len(seen)), []
    random = np.random.default_rng(0)  # the same runs give the same answer
    for begin in range(0, ROTATIONS, PIECE):
        directions = random.standard_normal((min(PIECE, ROTATIONS - begin), len(unit)))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        coordinates.append(np.abs(directions))
        found = np.abs(directions @ unit[:, order])
        alone += (found >= seen[order]).sum(axis=0)
        largest = np.maximum.accumulate(found[:, ::-1], axis=1)[:, ::-1]
        jointly += (largest >= seen[order]).sum(axis=0)
    p, joint = np.empty_like(alone), np.empty_like(alone)
    p[order] = (alone + 1) / (ROTATIONS + 1)
    joint[order] = np.maximum.accumulate((jointly + 1) / (ROTATIONS + 1))
    return p, joint, float(np.quantile(np.concatenate(coordinates), 0.95))
