"""How much longer compute takes while communication runs beside it, as far as the recorded steps tell.

Where gradients are accumulated, backwards with and without communication stand side by side. Else the host tells for
how long the training thread could have run and no processor was free. What other programs took of that is seen in
forward, where nothing is sent.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ddptrace.analysis.whatif.model import Model
from ddptrace.analysis.whatif.play import Floats
from ddptrace.analysis.whatif.tables import Contention

ASSUMED_HIGH: Final = 1.0
"""Where nothing tells."""
MOST_LOST: Final = 0.5
"""Of the time beside communication."""
CREDIBLE_LOST: Final = 0.7
"""More is not communication's alone."""
LOST_BY_WAITING: Final = {True: 1.3, False: 0.9, None: 1.0}
"""What is lost, for each ns of waiting for a processor, by whether anything goes to another host: the system's own work
on what comes in from there interrupts the thread, and is no wait. Measured with and without communication, three models
and four links, 0.6 to 1.9 and 0.8 to 1.1."""
FEWER, MORE = 0.5, 1.5
"""Of the likely loss, what else is in the interval."""
OTHERS_MAX_RATIO: Final = 0.15
"""Of the processors, taken by other programs: more, and nothing tells what of a wait for one is communication's."""
BESIDE_MIN_RATIO: Final = 0.3
"""Of backward; less beside communication tells nothing of it."""


def contention_of(model: Model) -> Contention:
    beside = _column([sample.compute_beside_ns for sample in model.samples])
    compute = _column([sample.compute_ns for sample in model.samples])
    if np.median(beside) < BESIDE_MIN_RATIO * np.median(compute) or not np.median(beside):
        return Contention(0.0, 0.0, ASSUMED_HIGH, False, "little was computed beside communication")
    beside = np.maximum(beside, 1.0)  # a step of which nothing ran beside communication is one among others
    if all(sample.unsynced_ns is not None for sample in model.samples):
        unsynced = _column([sample.unsynced_ns for sample in model.samples if sample.unsynced_ns is not None])
        low, middle, high = np.quantile((compute - unsynced) / beside, (0.25, 0.5, 0.75)).tolist()
        return _known(middle, low, high, "backwards with and without communication are in the run")
    if any(sample.queued_ns is None for sample in model.samples):
        return Contention(0.0, 0.0, ASSUMED_HIGH, False, "the host does not tell")
    return _queued(model, beside)


def _queued(model: Model, beside: Floats) -> Contention:
    queued = _column([sample.queued_ns for sample in model.samples if sample.queued_ns is not None])
    forward = _column([sample.ahead_ns for sample in model.samples])
    own = _column([sample.ahead_ns * model.backwards + sample.compute_ns + sample.after_ns for sample in model.samples])
    others = float(1 - np.quantile(forward, 0.1) / np.median(forward))
    times = LOST_BY_WAITING[model.crosses_hosts]
    likely = times * float(np.median(queued / beside))
    if others > OTHERS_MAX_RATIO or likely > CREDIBLE_LOST:
        why = "other programs took the processors too"
        return Contention(0.0, 0.0, _slower(MORE * likely), False, why)
    least = times * float(np.median((queued - others * own) / beside))
    why = "from how long the training thread waited for a processor"
    return _known(likely, FEWER * least, MORE * likely, why)


def _known(likely: float, low: float, high: float, why: str) -> Contention:
    """Of the time beside communication, what was lost."""
    return Contention(_slower(likely), _slower(low), _slower(high), True, why)


def _slower(lost: float) -> float:
    lost = min(max(lost, 0.0), MOST_LOST)
    return lost / (1 - lost)


def _column(rows: list[Floats]) -> Floats:
    """By step, the mean over ranks."""
    return np.asarray(np.array(rows).mean(axis=1))
