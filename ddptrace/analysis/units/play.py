"""Operations of all ranks played against each other: hosts work and wait, gathers and reductions share one wire.

rank 0   ├ work ┼ launch a ┼ work ────┼ wait for a ┄┄┄┤
rank 1   ├ work ────────┼ launch a ┼ work ┼ wait ┄┄┄┄┄┤
wire                    [latency|=== bytes ===========)      two at once share the bytes per second

A process group carries as many collectives at once as it has threads, in the order in which they were launched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ddptrace.analysis.units.plan import Do, Op
from ddptrace.schema import UnitRole

NOTHING_NS: Final = 1e-3
"""Less is rounding."""


@dataclass(frozen=True, slots=True)
class RoleCost:
    """What a collective of one role takes, with the wire to itself: ns, and ns for each byte."""

    latency_ns: float
    ns_per_byte: float

    def alone_ns(self, nbytes: float) -> float:
        return self.latency_ns + nbytes * self.ns_per_byte


@dataclass(frozen=True, slots=True)
class Wire:
    """`threads`: collectives of one process group at once. `is_separate`: reductions have a group of their own."""

    costs: Mapping[UnitRole, RoleCost]
    threads: int
    is_separate: bool = False

    def lane(self, role: UnitRole) -> UnitRole:
        return role if self.is_separate else UnitRole.UNSHARD


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """By rank: when it ended, and how long it waited. `comm_ns`: anything was sent."""

    ended_ns: tuple[float, ...]
    waited_ns: tuple[float, ...]
    comm_ns: float


@dataclass(slots=True)
class _Sending:
    collective: int
    lane: UnitRole
    latency_ns: float
    left_ns: float
    started: int = 0  # ranks that take part by now


@dataclass(slots=True)
class _Rank:
    ops: Sequence[Op]
    now: float  # until then it works
    at: int = 0
    waits_for: int = -1
    waited_ns: float = 0.0
    began_waiting: float = 0.0
    queues: dict[UnitRole, deque[int]] = field(default_factory=dict)
    running: dict[UnitRole, int] = field(default_factory=dict)


def play_step(ranks: Sequence[Sequence[Op]], wire: Wire, began_ns: Sequence[float]) -> PlayedStep:
    """Play one step. `began_ns`: when each rank begins it."""
    return _Player(ranks, wire, began_ns).run()


class _Player:
    def __init__(self, ranks: Sequence[Sequence[Op]], wire: Wire, began_ns: Sequence[float]) -> None:
        self._wire = wire
        self._ranks = [_Rank(ops, began) for ops, began in zip(ranks, began_ns, strict=True)]
        self._sendings: dict[int, _Sending] = {}
        self._active: list[_Sending] = []
        self._done: set[int] = set()
        self._now = min(began_ns)
        self._sent = 0.0

    def run(self) -> PlayedStep:
        while any(rank.at < len(rank.ops) or rank.waits_for >= 0 for rank in self._ranks):
            for rank in self._ranks:
                self._advance(rank)
            until = self._next()
            if until is None:
                break
            self._pass(until - self._now)
        return PlayedStep(
            tuple(rank.now for rank in self._ranks), tuple(rank.waited_ns for rank in self._ranks), self._sent
        )

    def _advance(self, rank: _Rank) -> None:
        """Let a rank do what it can do now."""
        if rank.waits_for >= 0:
            if rank.waits_for not in self._done:
                return
            rank.waited_ns += self._now - rank.began_waiting
            rank.now, rank.waits_for = self._now, -1
        while rank.at < len(rank.ops) and rank.now <= self._now + NOTHING_NS:
            op = rank.ops[rank.at]
            rank.at += 1
            if op.do is Do.WORK:
                rank.now += op.amount
            elif op.do is Do.LAUNCH:
                self._launch(rank, op)
            elif op.do is Do.WAIT and op.collective not in self._done:
                rank.waits_for, rank.began_waiting = op.collective, rank.now
                rank.now = float("inf")
                return

    def _launch(self, rank: _Rank, op: Op) -> None:
        lane, cost = self._wire.lane(op.role), self._wire.costs[op.role]
        if op.collective not in self._sendings:
            self._sendings[op.collective] = _Sending(op.collective, lane, cost.latency_ns, op.amount * cost.ns_per_byte)
        rank.queues.setdefault(lane, deque()).append(op.collective)
        self._admit(rank, lane)

    def _admit(self, rank: _Rank, lane: UnitRole) -> None:
        queue = rank.queues.get(lane)
        while queue and rank.running.get(lane, 0) < self._wire.threads:
            sending = self._sendings[queue.popleft()]
            rank.running[lane] = rank.running.get(lane, 0) + 1
            sending.started += 1
            if sending.started == len(self._ranks):
                self._active.append(sending)

    def _next(self) -> float | None:
        """Return the instant of the next event; None where nothing happens any more."""
        share = self._share()
        ends = [
            self._now + (one.latency_ns if one.latency_ns > NOTHING_NS else one.left_ns * share) for one in self._active
        ]
        works = [rank.now for rank in self._ranks if rank.at < len(rank.ops) and rank.waits_for < 0]
        return min((*ends, *works), default=None)

    def _share(self) -> int:
        """Collectives that share the wire."""
        return max(sum(one.latency_ns <= NOTHING_NS for one in self._active), 1)

    def _pass(self, ns: float) -> None:
        share = self._share()
        for one in self._active:
            if one.latency_ns > NOTHING_NS:
                one.latency_ns -= ns
            else:
                one.left_ns -= ns / share
        self._sent += ns * bool(self._active)
        self._now += ns
        over = [one for one in self._active if one.latency_ns <= NOTHING_NS and one.left_ns <= NOTHING_NS]
        for one in over:
            self._active.remove(one)
            self._done.add(one.collective)
            for rank in self._ranks:
                rank.running[one.lane] -= 1
                self._admit(rank, one.lane)
