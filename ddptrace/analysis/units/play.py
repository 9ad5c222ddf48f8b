"""Operations of all ranks played against each other: hosts work and wait, gathers and reductions share one wire.

rank 0   ├ work ┼ launch a ┼ work ────┼ wait for a ┄┄┄┤
rank 1   ├ work ────────┼ launch a ┼ work ┼ wait ┄┄┄┄┄┤
wire                    [latency|=== bytes ===========)

A process group has one connection to each peer: its collectives go out in the order of launch, one after the other. Two
process groups share the bytes per second. A link that was idle may send the first bytes at once, as
one whose rate is limited by tokens does.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """`saved_ns`: of its time to send, what an idle link saves up at most. `is_separate`: reductions have their own
    group."""

    costs: Mapping[UnitRole, RoleCost]
    saved_ns: float = 0.0
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
    left_ns: float  # of the wire to itself
    bytes_ns: float  # part of it that an idle link can save up
    launched: int = 0  # ranks that have launched it
    has_begun: bool = False


@dataclass(slots=True)
class _Rank:
    ops: Sequence[Op]
    now: float  # until then it works
    at: int = 0
    waits_for: int = -1
    waited_ns: float = 0.0
    began_waiting: float = 0.0


def play_step(ranks: Sequence[Sequence[Op]], wire: Wire, began_ns: Sequence[float]) -> PlayedStep:
    """Play one step. `began_ns`: when each rank begins it."""
    return _Player(ranks, wire, began_ns).run()


class _Player:
    def __init__(self, ranks: Sequence[Sequence[Op]], wire: Wire, began_ns: Sequence[float]) -> None:
        self._wire = wire
        self._ranks = [_Rank(ops, began) for ops, began in zip(ranks, began_ns, strict=True)]
        self._sendings: dict[int, _Sending] = {}
        self._queues: defaultdict[UnitRole, deque[_Sending]] = defaultdict(deque)
        self._done: set[int] = set()
        self._now = min(began_ns)
        self._sent = 0.0
        self._saved = wire.saved_ns

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
        cost = self._wire.costs[op.role]
        sending = self._sendings.get(op.collective)
        if sending is None:
            nbytes_ns = op.amount * cost.ns_per_byte
            sending = self._sendings[op.collective] = _Sending(op.collective, cost.latency_ns + nbytes_ns, nbytes_ns)
            self._queues[self._wire.lane(op.role)].append(sending)
        sending.launched += 1

    def _under_way(self) -> list[_Sending]:
        """Return what is sent now: of each process group the first, once all ranks have launched it."""
        firsts = [queue[0] for queue in self._queues.values() if queue and queue[0].launched == len(self._ranks)]
        for one in firsts:
            self._begin(one)
        return firsts

    def _begin(self, sending: _Sending) -> None:
        """What the idle link has saved up is sent at once."""
        if not sending.has_begun:
            sending.has_begun = True
            at_once = min(self._saved, sending.bytes_ns)
            sending.left_ns -= at_once
            self._saved -= at_once

    def _next(self) -> float | None:
        """Return the instant of the next event; None where nothing happens any more."""
        sent = self._under_way()
        ends = [self._now + one.left_ns * len(sent) for one in sent]
        works = [rank.now for rank in self._ranks if rank.at < len(rank.ops) and rank.waits_for < 0]
        return min((*ends, *works), default=None)

    def _pass(self, ns: float) -> None:
        sent = self._under_way()
        for one in sent:
            one.left_ns -= ns / len(sent)
        self._sent += ns * bool(sent)
        self._saved = min(self._saved + ns * (not sent), self._wire.saved_ns)
        self._now += ns
        for queue in self._queues.values():
            while queue and queue[0].has_begun and queue[0].left_ns <= NOTHING_NS:
                self._done.add(queue.popleft().collective)
