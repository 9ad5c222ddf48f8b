"""Ranks that train together, played by hand: how long each part takes on each rank is said, the rest follows.

A step: data, forward, backward with one launch after each of its parts, waits for all of them, update, other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddptrace.analysis.analyze import analyze_rank
from ddptrace.analysis.matching.matches import match_ranks
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.load.tables import Call, Group, PhaseMark, RankRun, StepMark
from ddptrace.schema import Phase
from tests.unit.analysis_records import call, mark, rank, step

MS = 1_000_000
Late = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """Lengths in ns. `late(rank, step)`: what the rank takes longer there, by part: "data", "forward", "backward 0",
    "backward 1" and so on, "optimizer", "other". `groups`: which ranks train together."""

    ranks: int = 2
    steps: int = 60
    data: int = 1 * MS
    forward: int = 5 * MS
    backward: tuple[int, ...] = (4 * MS, 4 * MS)
    optimizer: int = 2 * MS
    other: int = 0
    transfer: int = 3 * MS
    late: Callable[[int, int], Late] = field(default=lambda rank, step: {})
    groups: tuple[tuple[int, ...], ...] = ()
    is_sync: bool = False  # the waits of its collectives were not seen, and each is waited for at once
    loss: int = 0  # a step begins with a collective of this length, of which only the waits were seen; 0 none


class Player:
    """Plays a plan: each collective begins when the last rank of its group has launched it and the one before is over,
    and nobody goes on before its end."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now = [0] * plan.ranks
        self.steps: list[list[StepMark]] = [[] for _ in range(plan.ranks)]
        self.phases: list[list[PhaseMark]] = [[] for _ in range(plan.ranks)]
        self.calls: list[list[Call]] = [[] for _ in range(plan.ranks)]
        for ordinal in range(plan.steps):
            for group in self.groups:
                self._step(group, ordinal)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return self.plan.groups or (tuple(range(self.plan.ranks)),)

    def _step(self, group: tuple[int, ...], ordinal: int) -> None:
        began = {one: self.now[one] for one in group}
        if self.plan.loss:
            self._average(group)
        for phase in (Phase.DATA, Phase.FORWARD):
            for one in group:
                self._phase(one, phase, ordinal)
        self._backward(group, ordinal)
        for one in group:
            self._phase(one, Phase.OPTIMIZER, ordinal)
            self.now[one] += self._takes(one, ordinal, "other", self.plan.other)
            self.steps[one].append(step(ordinal, began[one], self.now[one]))

    def _average(self, group: tuple[int, ...]) -> None:
        launches = {one: self.now[one] for one in group}
        over = max(launches.values()) + self.plan.loss
        for one in group:
            seq = len(self.calls[one]) + 1
            self.calls[one].append(call(
                seq, launches[one], ordinal=seq - 1, group=str(self.groups.index(group)), turn=seq - 1, is_sync=True,
                waits=((launches[one], over),),
            ))  # fmt: skip
            self.now[one] = over

    def _takes(self, one: int, ordinal: int, part: str, ns: int) -> int:
        return ns + self.plan.late(one, ordinal).get(part, 0)

    def _phase(self, one: int, phase: Phase, ordinal: int) -> None:
        begin, part = self.now[one], phase.name.lower()
        self.now[one] += self._takes(one, ordinal, part, getattr(self.plan, part))
        self.phases[one].append(mark(phase, begin, self.now[one]))

    def _backward(self, group: tuple[int, ...], ordinal: int) -> None:
        began, over = {one: self.now[one] for one in group}, 0
        pending: list[tuple[dict[int, int], int]] = []
        for part, ns in enumerate(self.plan.backward):
            for one in group:
                self.now[one] += self._takes(one, ordinal, f"backward {part}", ns)
            launches = {one: self.now[one] for one in group}
            over = max(over, *launches.values()) + self.plan.transfer
            pending.append((launches, over))
            if self.plan.is_sync:
                self._wait(group, pending)
                pending = []
        self._wait(group, pending)
        for one in group:
            self.phases[one].append(mark(Phase.BACKWARD, began[one], self.now[one], backward=ordinal))

    def _wait(self, group: tuple[int, ...], pending: Sequence[tuple[dict[int, int], int]]) -> None:
        name = str(self.groups.index(group))
        for launches, over in pending:
            for one in group:
                seq, launch = len(self.calls[one]) + 1, launches[one]
                waits = () if self.plan.is_sync else ((self.now[one], max(self.now[one], over)),)
                self.now[one] = max(self.now[one], over)
                self.calls[one].append(call(
                    seq, launch, ran=(launch, over), ordinal=seq - 1, group=name, waits=waits, turn=seq - 1,
                    is_sync=self.plan.is_sync, issued_at_ns=launch,
                ))  # fmt: skip

    def runs(self) -> list[RankRun]:
        groups = [Group(str(at), members, "gloo", 2) for at, members in enumerate(self.groups)]
        return [
            rank(
                one, steps=self.steps[one], phases=self.phases[one], calls=self.calls[one],
                groups=[group for group in groups if one in group.ranks],
            )
            for one in range(self.plan.ranks)
        ]  # fmt: skip

    def step_ns(self) -> float:
        """Mean length of a step, over all ranks and those steps that are judged: without the first two."""
        judged = [one.end_at_ns - one.begin_at_ns for steps in self.steps for one in steps[2:]]
        return sum(judged) / len(judged)


def played(plan: Plan) -> tuple[list[RankTables], tuple[MatchRow, ...]]:
    """What analysis makes of it."""
    return analyzed(Player(plan).runs())


def analyzed(runs: Sequence[RankRun]) -> tuple[list[RankTables], tuple[MatchRow, ...]]:
    tables = [analyze_rank(one) for one in runs]
    return tables, match_ranks([(table.facts, table.collectives, table.steps) for table in tables]).rows


def only(who: int, part: str, ns: int, steps: Callable[[int], bool] = lambda step: True) -> Callable[[int, int], Late]:
    """One rank is late in one part, in these steps."""
    return lambda one, at: {part: ns} if one == who and steps(at) else {}
