"""One backward played: buckets are planned, gradients become ready, buckets are sent, and compute goes on beside them,
slowed by them.

rank 0    ├─ 0 ──┼─ 1 ──┼─ 2 ──┤               a bucket is ready on a rank
rank 1    ├── 0 ──┼── 1 ──┼── 2 ──┤            the collective begins with the last of them
wire              [==== 0 ====)[==== 1 ====)

Buckets are planned as DDP plans anew after its first step: in the order in which gradients become ready. The gradient
that makes a bucket reach its cap closes it; no gradient is split, and each bucket holds one dtype.

Communication runs on all ranks at once, so it slows all of them alike. Instants are first counted in work, the time
that compute would take alone. In work it is known from the start when each bucket is ready, whatever is sent when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.whatif.wire import Wire
from ddptrace.load.tables import Parameter

MIB: Final = 1024 * 1024

Buckets = tuple[tuple[int, ...], ...]
Floats = NDArray[np.float64]
NOTHING_NS = 1e-6
"""Less is rounding."""
PIECES_NBYTES = 3e6
"""Gloo sends pieces of a quarter of a message, at most 1 MiB, one behind the other: what is larger than this has as
many bytes on the way as any, and what is smaller beside it gets the less of the link (measured on two hosts)."""


def plan_buckets(order: Sequence[int], parameters: Sequence[Parameter], caps_nbytes: Sequence[int]) -> Buckets:
    """Parameter numbers by bucket, in launch order. `order`: as they become ready. The last cap repeats; each dtype
    goes through all caps. What is never full is sent last."""
    closed: list[tuple[int, ...]] = []
    filling: dict[str, list[int]] = {}
    nth: dict[str, int] = {}
    for number in order:
        dtype = parameters[number].dtype
        members = filling.setdefault(dtype, [])
        members.append(number)
        cap = caps_nbytes[min(nth.get(dtype, 0), len(caps_nbytes) - 1)]
        if sum(parameters[member].nbytes for member in members) >= cap:
            closed.append(tuple(filling.pop(dtype)))
            nth[dtype] = nth.get(dtype, 0) + 1
    return (*closed, *(tuple(members) for members in filling.values()))


def caps_nbytes(caps_mb: Sequence[float]) -> tuple[int, ...]:
    """Of caps in MiB, as DDP takes them."""
    return tuple(max(1, int(min(cap, 2**40) * MIB)) for cap in caps_mb)


@dataclass(frozen=True, slots=True)
class Played:
    """`done_ns`: by bucket. `marks`, shape (n, 3): instants, the work done by then, and the communication so far."""

    done_ns: Floats
    marks: Floats

    def at(self, work_ns: Floats) -> Floats:
        """When compute comes to this much work."""
        return self._after(work_ns, 1, 0)

    def worked(self, at_ns: Floats) -> Floats:
        return self._after(at_ns, 0, 1)

    def communicated(self, at_ns: Floats) -> Floats:
        """Time in which anything was sent, until then."""
        return np.interp(at_ns, self.marks[:, 0], self.marks[:, 2])

    def _after(self, known: Floats, of: int, wanted: int) -> Floats:
        """Before the first and after the last mark, compute runs alone."""
        marks = self.marks
        inside = np.interp(known, marks[:, of], marks[:, wanted])
        early = np.minimum(known - marks[0, of], 0.0)
        late = np.maximum(known - marks[-1, of], 0.0)
        return np.asarray(inside + early + late)


def play(ready_ns: Floats, nbytes: Sequence[float], wire: Wire, slowdown: float = 0.0) -> Played:
    """`ready_ns`, shape (buckets,): work at which the last rank has each bucket ready; they are launched in order.
    `slowdown`: compute takes so many times longer, beyond once, while anything is sent."""
    return _Player(ready_ns.tolist(), list(nbytes), wire, slowdown).run()


@dataclass(slots=True)
class _Sending:
    bucket: int
    latency_ns: float
    left_ns: float  # of the wire to itself
    weight: float  # its share of the wire, to those of the others


@dataclass(slots=True)
class _Player:
    """From one event to the next: a launch, the end of a latency, the end of a transfer. Forecasts go through millions
    of them, so each is one pass over what is sent."""

    launches: list[float]
    nbytes: list[float]
    wire: Wire
    slowdown: float
    launched: int = 0
    active: list[_Sending] = field(default_factory=list)
    queues: list[deque[_Sending]] = field(default_factory=list)
    free: list[int] = field(default_factory=list)  # workers, by group
    costs: dict[float, tuple[float, float, float]] = field(default_factory=dict)  # by bytes, as `_Sending` has them

    def run(self) -> Played:
        lanes, workers = self.wire.lanes, self.wire.workers
        self.queues, self.free = [deque() for _ in range(lanes)], [workers] * lanes
        count, slower, active = len(self.launches), 1 + self.slowdown, self.active
        now = work = self.launches[0]
        sent = 0.0
        done = np.zeros(count)
        marks = [(now, work, sent)]
        while self.launched < count or active or any(self.queues):
            self._admit(work)
            weights = sum([one.weight for one in active if one.latency_ns <= NOTHING_NS])
            ns = self._until(work, weights, slower)
            is_over = self._pass(ns, weights)
            now += ns
            work += ns / slower if active else ns
            sent += ns if active else 0.0
            marks.append((now, work, sent))
            if is_over:
                for one in [one for one in active if one.left_ns <= NOTHING_NS and one.latency_ns <= NOTHING_NS]:
                    active.remove(one)
                    self.free[one.bucket % lanes] += 1
                    done[one.bucket] = now
        return Played(done, np.array(marks))

    def _admit(self, work: float) -> None:
        """What is launched by now, as far as its group has a worker for it."""
        while self.launched < len(self.launches) and self.launches[self.launched] - work <= NOTHING_NS:
            sending = _Sending(self.launched, *self._cost(self.nbytes[self.launched]))
            self.queues[self.launched % self.wire.lanes].append(sending)
            self.launched += 1
        for lane, queue in enumerate(self.queues):
            while queue and self.free[lane]:
                self.active.append(queue.popleft())
                self.free[lane] -= 1

    def _cost(self, nbytes: float) -> tuple[float, float, float]:
        """Latency, time of its bytes, and weight; buckets are mostly of one size."""
        cost = self.costs.get(nbytes)
        if cost is None:
            cost = self.costs[nbytes] = (*self.wire.cost(nbytes), max(min(nbytes, PIECES_NBYTES), 1.0))
        return cost

    def _until(self, work: float, weights: float, slower: float) -> float:
        """Time to the next event. `weights`: all of those that are past their latency; `slower`: by so many times
        compute takes longer while anything is sent."""
        ends = [
            sending.latency_ns if sending.latency_ns > NOTHING_NS else sending.left_ns * weights / sending.weight
            for sending in self.active
        ]
        if self.launched < len(self.launches):
            left = self.launches[self.launched] - work
            ends.append(left * slower if self.active else left)
        return max(min(ends), 0.0)

    def _pass(self, ns: float, weights: float) -> bool:
        """Let so much time pass, and tell whether a transfer may be over."""
        is_over = False
        for sending in self.active:
            if sending.latency_ns > NOTHING_NS:
                sending.latency_ns -= ns
            else:
                sending.left_ns -= ns * sending.weight / weights
            is_over |= sending.left_ns <= NOTHING_NS
        return is_over
