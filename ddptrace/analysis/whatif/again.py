"""Recorded steps played again, one after the other, with what was changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ddptrace.analysis.whatif.model import Model, Sample
from ddptrace.analysis.whatif.play import Buckets, Floats, play
from ddptrace.analysis.whatif.wire import Wire


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is played. `slowdown`: compute takes so many times longer, beyond once, while anything is sent; as it was in
    the recorded steps, and as it would be."""

    buckets: Buckets
    wire: Wire
    recorded_slowdown: float = 0.0
    slowdown: float = 0.0
    wire_ratio: float = 1.0  # bytes sent for each byte of gradients
    byte_ns: float = 0.0  # host time that a hook takes for each byte of gradients
    backwards: int = 1
    evened: int | None = None  # position of a rank that is as fast as the median of the others
    is_eager: bool = False  # all can be sent when backward begins


@dataclass(frozen=True, slots=True)
class Own:
    """Times of compute without waits, by rank; those of `ready_ns`, shape (ranks, buckets), and `compute_ns` count from
    the begin of the synchronised backward."""

    before_ns: Floats
    ready_ns: Floats
    compute_ns: Floats
    after_ns: Floats
    elsewhere_ns: float

    def changed(self, change: Callable[[Floats], Floats]) -> Own:
        """Each column otherwise."""
        return Own(
            change(self.before_ns),
            change(self.ready_ns),
            change(self.compute_ns),
            change(self.after_ns),
            self.elsewhere_ns,
        )


@dataclass(frozen=True, slots=True)
class Steps:
    """By sample. `step_ns`: mean over ranks."""

    step_ns: Floats
    exposed_ns: Floats
    comm_ns: Floats


def play_steps(model: Model, plan: Scenario) -> Steps:
    """The recorded steps under another plan."""
    return play_all(model, plan, [own_times(model, plan, sample) for sample in model.samples])


def play_all(model: Model, plan: Scenario, steps: Iterable[Own]) -> Steps:
    """Ranks that end a step early begin the next one early."""
    nbytes = (sizes(model, plan.buckets) * plan.wire_ratio).tolist()
    began, rows = np.zeros(1), []
    for own in steps:
        ended, exposed, comm = _played(own, plan, nbytes, began)
        rows.append((float((ended - began).mean()), exposed, comm))
        began = ended - ended.min()
    return Steps(*np.array(rows).T)


def sizes(model: Model, buckets: Buckets) -> Floats:
    """Bytes of the gradients of each bucket."""
    return np.array([sum(model.parameters[one].nbytes for one in bucket) for bucket in buckets], float)


def own_times(model: Model, plan: Scenario, sample: Sample) -> Own:
    """As they would be without communication beside them, and with what launching the buckets takes."""
    hosting = model.launch_ns + plan.byte_ns * sizes(model, plan.buckets)
    kept = plan.recorded_slowdown / (1 + plan.recorded_slowdown)
    ready = sample.ready_ns - kept * sample.ready_beside_ns
    compute = sample.compute_ns - kept * sample.compute_beside_ns
    accumulated = compute if sample.unsynced_ns is None else sample.unsynced_ns
    members = [one for bucket in plan.buckets for one in bucket]
    firsts = [0, *itertools.accumulate(map(len, plan.buckets[:-1]))]
    of_buckets = np.maximum.reduceat(ready[:, members], firsts, axis=1)
    own = Own(
        plan.backwards * sample.ahead_ns + (plan.backwards - 1) * accumulated,
        of_buckets * (not plan.is_eager) + np.cumsum(hosting) - model.launch_ns,
        compute + hosting.sum(),
        sample.after_ns,
        sample.elsewhere_ns,
    )
    return own if plan.evened is None else _evened(own, plan.evened)


def _evened(own: Own, rank: int) -> Own:
    def even(column: Floats) -> Floats:
        column = column.copy()
        column[rank] = np.median(np.delete(column, rank, axis=0), axis=0)
        return column

    return own.changed(even)


def _played(own: Own, plan: Scenario, nbytes: Sequence[float], began: Floats) -> tuple[Floats, float, float]:
    """When each rank ends the step, and mean exposed and whole time of communication. Exposed is all that a rank waits
    for its buckets, as in the breakdown of a step: a collective runs on a rank from its own launch on, so that the wait
    for a late rank counts."""
    begin = began + own.before_ns
    if own.elsewhere_ns:
        begin = np.full(len(begin), begin.max() + own.elsewhere_ns)
    played = play((begin[:, None] + own.ready_ns).max(axis=0), nbytes, plan.wire, plan.slowdown)
    computed = played.at(begin + own.compute_ns)
    released = np.maximum(computed, played.done_ns.max())
    exposed = float((released - computed).mean()) + own.elsewhere_ns
    return released + own.after_ns, exposed, float(played.marks[-1, 2])
