"""How much longer compute takes while communication runs beside it, as far as the recorded steps tell.

Where gradients are accumulated, backwards with and without communication stand side by side. Else the host tells for
how long the training thread could have run and no processor was free: at most that much is communication's, less what
other programs took, which is seen in forward, where nothing is sent.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ddptrace.analysis.whatif.model import Model
from ddptrace.analysis.whatif.play import Floats
from ddptrace.analysis.whatif.tables import Contention

ASSUMED_HIGH: Final = 0.5
"""Where nothing tells."""
MOST_LOST: Final = 0.5
"""Of the time beside communication."""
OTHERS_MAX_RATIO: Final = 0.15
"""Of the processors, taken by other programs: more, and nothing tells what of a wait for one is communication's."""
BESIDE_MIN_RATIO: Final = 0.3
"""Of backward; less beside communication tells nothing of it."""


def contention_of(model: Model) -> Contention:
    beside = _column([one.compute_beside_ns for one in model.samples])
    compute = _column([one.compute_ns for one in model.samples])
    if np.median(beside) < BESIDE_MIN_RATIO * np.median(compute):
        return Contention(0.0, 0.0, ASSUMED_HIGH, False, "little was computed beside communication")
    if all(one.unsynced_ns is not None for one in model.samples):
        unsynced = _column([one.unsynced_ns for one in model.samples if one.unsynced_ns is not None])
        low, middle, high = np.quantile((compute - unsynced) / beside, (0.25, 0.5, 0.75)).tolist()
        return _known(middle, low, high, "backwards with and without communication are in the run")
    if any(one.queued_ns is None for one in model.samples):
        return Contention(0.0, 0.0, ASSUMED_HIGH, False, "the host does not tell")
    return _queued(model, beside)


def _queued(model: Model, beside: Floats) -> Contention:
    queued = _column([one.queued_ns for one in model.samples if one.queued_ns is not None])
    forward = _column([one.ahead_ns for one in model.samples])
    own = _column([one.ahead_ns * model.backwards + one.compute_ns + one.after_ns for one in model.samples])
    others = 1 - np.min(forward) / np.median(forward)
    high = float(np.median(queued / beside))
    if others > OTHERS_MAX_RATIO:
        why = "other programs took the processors too"
        return Contention(0.0, 0.0, _slower(high), False, why)
    likely = float(np.median((queued - others * own) / beside))
    return _known(likely, 0.0, high, "from how long the training thread waited for a processor")


def _known(likely: float, low: float, high: float, why: str) -> Contention:
    """Of the time beside communication, what was lost."""
    return Contention(_slower(likely), _slower(low), _slower(high), True, why)


def _slower(lost: float) -> float:
    lost = min(max(lost, 0.0), MOST_LOST)
    return lost / (1 - lost)


def _column(rows: list[Floats]) -> Floats:
    """By step, the mean over ranks."""
    return np.asarray(np.array(rows).mean(axis=1))
