"""What the host would do in a recorded step under another setting, as operations in order, and the memory they take.

Gathers ahead of their use, gathers that the host waits for at once, and parameters that stay follow torch's own order.
Units are put together or divided in the order of forward, the root's left alone: it holds what no other unit has.

On a device the host only launches: the stream that computes works and waits. A gather there waits for copies out of the
gathers before it, and not for the computation between, so it begins further ahead than the host launched it. The stream
waits for a reduction when the next one is ready, and at the end of backward.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from ddptrace.analysis.units.script import Mark, RankScript, StepScript
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.load.tables import Unit
from ddptrace.schema import Phase, UnitMark, UnitRole

ITEMSIZE: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
USUAL: Final = {Phase.FORWARD: 0, Phase.BACKWARD: 1}
"""Units that torch gathers ahead by itself."""


class Do(enum.Enum):
    """What the host does, or the stream that computes."""

    WORK = enum.auto()  # for so many ns
    LAUNCH = enum.auto()
    WAIT = enum.auto()
    HOLD = enum.auto()  # so many bytes more, or fewer


class Op(NamedTuple):
    """One operation. `collective`: its number in the step; `role`: what it does for its unit."""

    do: Do
    amount: int = 0  # ns of work, or bytes
    collective: int = -1
    role: UnitRole = UnitRole.OTHER


@dataclass(frozen=True, slots=True)
class Ways:
    """How units are gathered and reduced. `sizes`: units in one, or 1 / parts of one."""

    ahead: Mapping[Phase, int]
    is_async: bool
    reshards: bool | None  # None: as each unit had it
    sizes: float
    is_separate: bool
    reduce_ratio: float
    on_device: bool = False


def ways_of(script: RankScript, setting: Setting) -> Ways:
    """Return the recorded ways, with what a setting changes."""
    asked = {Phase.FORWARD: setting.forward_prefetch, Phase.BACKWARD: setting.backward_prefetch}
    had = next(iter(script.units.values())).parameters
    itemsize = ITEMSIZE.get(had[0].dtype if had else "", 4)
    ratio = script.reduce_ratio if setting.reduce_dtype is None else ITEMSIZE[setting.reduce_dtype] / itemsize
    return Ways(
        {
            phase: script.ahead.get(phase, usual) if asked[phase] is None else asked[phase] or 0
            for phase, usual in USUAL.items()
        },
        script.is_async if setting.unshard_async_op is None else setting.unshard_async_op,
        setting.reshard_after_forward,
        setting.unit_size,
        setting.separate_reduce_scatter_group or script.is_separate,
        ratio,
        script.on_device,
    )


def as_streams_go(ways: Ways) -> Ways:
    """Return the ways with how far ahead of its use a gather may begin on a device. In forward it waits until the
    parameters of the unit before the last one that was used are copied out; in backward, until those of the last."""
    ahead = {Phase.FORWARD: max(ways.ahead[Phase.FORWARD], 1) + 1, Phase.BACKWARD: ways.ahead[Phase.BACKWARD]}
    return replace(ways, ahead=ahead) if ways.on_device else ways


@dataclass(frozen=True, slots=True)
class Planned:
    """One unit as a plan has it."""

    nbytes: int
    sharded_nbytes: int
    reshards: bool


class Plan:
    """The operations of each recorded step of one rank under a setting."""

    def __init__(self, script: RankScript, ways: Ways) -> None:
        self.ways = ways
        self._script = script
        structure = script.steps[0].structure
        forward = dict.fromkeys(one.unit for one in structure if one.mark is UnitMark.USE)
        self._movable = [unit for unit in forward if not script.units[unit].is_root]
        self._together = max(round(ways.sizes), 1)
        self._parts = max(round(1 / ways.sizes), 1)
        self._first = {unit: at // self._together for at, unit in enumerate(self._movable)}
        self.units = self._planned()

    def refusal(self) -> str | None:
        """Return why units cannot be made larger or smaller; None if they can, or stay."""
        if self.ways.sizes == 1:
            return None
        uses = Counter(one for one in self._script.steps[0].structure if one.mark is UnitMark.USE)
        if not self._movable:
            return "the root is the only unit"
        if max(uses.values()) > 1:
            return "a unit is used twice in forward or backward"
        if not all(map(self._is_leaf, self._movable)):
            return "units that have others inside are not put together or divided"
        return None

    def ops(self, script: StepScript) -> list[Op]:
        """Return what the host does in one of the steps."""
        return list(_Emitted(self, script).ops(self._items(script)))

    def peak_nbytes(self) -> int:
        """Return the most bytes that a rank has at once: shards, gathered units and gradients."""
        shards = sum(unit.sharded_nbytes for unit in self._script.units.values())
        held = (op.amount for op in self.ops(self._script.steps[0]) if op.do is Do.HOLD)
        return shards + max(accumulate(held), default=0)

    def _planned(self) -> dict[tuple[int, int], Planned]:
        found: defaultdict[tuple[int, int], list[Unit]] = defaultdict(list)
        for number, unit in self._script.units.items():
            for part in range(self._parts if number in self._first else 1):
                found[self._key(number, part)].append(unit)
        return {key: self._unit(key, units) for key, units in found.items()}

    def _unit(self, key: tuple[int, int], units: Sequence[Unit]) -> Planned:
        parts = self._parts if key[0] >= 0 else 1
        asked = None if key[0] < 0 and self.ways.reshards else self.ways.reshards
        return Planned(
            sum(unit.nbytes for unit in units) // parts,
            sum(unit.sharded_nbytes for unit in units) // parts,
            bool(units[0].reshards) if asked is None else asked,
        )

    def _key(self, unit: int, part: int = 0) -> tuple[int, int]:
        """A root unit has a negative number."""
        return (self._first[unit], part) if unit in self._first else (-1 - unit, 0)

    def _is_leaf(self, unit: int) -> bool:
        marks = self._script.steps[0].structure
        after = [(one.phase, following) for one, following in pairwise(marks) if _is_use(one, unit)]
        return all(one.unit == unit or (phase is Phase.FORWARD and one.mark is UnitMark.USE) for phase, one in after)

    # Marks, of units as planned ---------------------------------------------------------------------------------------

    def _items(self, script: StepScript) -> Iterator[int | tuple[tuple[int, int], Mark]]:
        """Yield work, and marks with the unit that they are of, in order."""
        marks = list(_with_frees(script.structure, self._first))
        works = _works(script, marks)
        seen: Counter[tuple[tuple[int, int], UnitMark, Phase]] = Counter()
        inside: int | None = None  # a unit whose work is divided
        for work, mark in zip(works, marks, strict=False):
            if inside is not None and mark.mark is not UnitMark.USE:
                yield from self._divided(inside, work, mark)
                inside = None
                continue
            yield work
            if self._parts > 1 and mark.unit in self._first:
                inside = mark.unit
                continue
            key = self._key(mark.unit)
            seen[key, mark.mark, mark.phase] += 1
            count = seen[key, mark.mark, mark.phase]
            members = sum(one == key[0] for one in self._first.values()) if key[0] >= 0 else 1
            if members == 1 or count == (1 if mark.mark is UnitMark.USE else members):
                yield key, mark
        yield works[-1]

    def _divided(self, unit: int, work: int, mark: Mark) -> Iterator[int | tuple[tuple[int, int], Mark]]:
        parts = range(self._parts) if mark.phase is Phase.FORWARD else reversed(range(self._parts))
        for part in parts:
            yield self._key(unit, part), Mark(unit, UnitMark.USE, mark.phase)
            yield work // self._parts
            yield self._key(unit, part), mark

    def share(self, key: tuple[int, int], costs: Mapping[int, int]) -> int:
        """What copies of a planned unit cost, of those of the recorded ones."""
        if key[0] < 0:
            return costs.get(-1 - key[0], 0)
        return sum(costs.get(unit, 0) for unit, first in self._first.items() if first == key[0]) // self._parts

    @property
    def gather_ratio(self) -> float:
        return self._script.gather_ratio


class _Emitted:
    """The operations of one step, as they are made."""

    def __init__(self, plan: Plan, script: StepScript) -> None:
        self._plan = plan
        self._ways = plan.ways
        self._costs = {
            (name, phase): _of_phase(costs, phase)
            for name, costs in (("in", script.in_ns), ("out", script.out_ns))
            for phase in USUAL
        }
        self._reduce_in, self._reduce_out = script.reduce_in_ns, script.reduce_out_ns
        self._launched: dict[tuple[int, int], int] = {}
        self._gathered: set[tuple[int, int]] = set()
        self._flat = 0  # gathered bytes that torch keeps until the next gather of forward is there
        self._sent = 0  # bytes of the reduction before, which are let go with the next one
        self._shards = 0  # of gradients
        self._count = 0
        self._reducing: int | None = None  # a reduction that a device's stream has not waited for

    def ops(self, items: Iterator[int | tuple[tuple[int, int], Mark]]) -> Iterator[Op]:
        listed = list(items)
        last = max(
            (at for at, item in enumerate(listed) if not isinstance(item, int) and _is_ready(item[1])), default=0
        )
        for at, item in enumerate(listed):
            if isinstance(item, int):
                yield Op(Do.WORK, item)
                continue
            key, mark = item
            if mark.mark is UnitMark.USE:
                following = [one for one in listed[at + 1 :] if not isinstance(one, int)]
                yield from self._use(key, mark.phase)
                yield from self._ahead(mark.phase, following)
            elif mark.mark is UnitMark.FREED:
                if self._plan.units[key].reshards:
                    yield from self._free(key)
            else:
                yield from self._reduce(key)
            if at == last:
                yield from self._wait_for_reduction()
        yield Op(Do.HOLD, -self._shards - self._sent)

    def _ahead(self, phase: Phase, following: Sequence[tuple[tuple[int, int], Mark]]) -> Iterator[Op]:
        uses = [key for key, mark in following if mark.mark is UnitMark.USE and mark.phase is phase]
        for key in uses[: self._ways.ahead[phase]]:
            yield from self._gather(key, phase)

    def _gather(self, key: tuple[int, int], phase: Phase) -> Iterator[Op]:
        if key in self._gathered or key in self._launched:
            return
        yield Op(Do.HOLD, self._whole(key))
        yield Op(Do.WORK, self._cost("in", key, phase))
        self._launched[key] = self._count
        yield Op(Do.LAUNCH, self._whole(key), self._count, UnitRole.UNSHARD)
        if not self._ways.is_async and not self._ways.on_device:
            yield Op(Do.WAIT, 0, self._count)
        self._count += 1

    def _use(self, key: tuple[int, int], phase: Phase) -> Iterator[Op]:
        if key in self._gathered:
            return
        yield from self._gather(key, phase)
        yield Op(Do.WAIT, 0, self._launched.pop(key))
        is_kept = not self._ways.is_async and phase is Phase.FORWARD
        yield Op(Do.HOLD, -self._flat)
        self._flat = self._whole(key) if is_kept else 0
        yield Op(Do.HOLD, self._whole(key))
        yield Op(Do.WORK, self._cost("out", key, phase))
        yield Op(Do.HOLD, self._flat - self._whole(key))
        self._gathered.add(key)

    def _free(self, key: tuple[int, int]) -> Iterator[Op]:
        if key in self._gathered:
            self._gathered.remove(key)
            yield Op(Do.HOLD, -self._whole(key))

    def _reduce(self, key: tuple[int, int]) -> Iterator[Op]:
        unit, gradients = self._plan.units[key], self._whole(key)
        yield from self._wait_for_reduction()
        sent = round(unit.nbytes * self._ways.reduce_ratio)
        yield Op(Do.HOLD, gradients - self._flat)
        self._flat = 0
        yield from self._free(key)
        yield Op(Do.HOLD, sent - self._sent)
        self._sent = sent
        yield Op(Do.WORK, self._plan.share(key, self._reduce_in))
        yield Op(Do.HOLD, unit.sharded_nbytes)
        self._shards += unit.sharded_nbytes
        yield Op(Do.LAUNCH, sent, self._count, UnitRole.REDUCE_SCATTER)
        self._reducing = self._count
        self._count += 1
        if not self._ways.on_device:
            yield from self._wait_for_reduction()
        yield Op(Do.HOLD, -gradients)
        yield Op(Do.WORK, self._plan.share(key, self._reduce_out))

    def _wait_for_reduction(self) -> Iterator[Op]:
        if self._reducing is not None:
            yield Op(Do.WAIT, 0, self._reducing)
            self._reducing = None

    def _whole(self, key: tuple[int, int]) -> int:
        return round(self._plan.units[key].nbytes * self._plan.gather_ratio)

    def _cost(self, name: str, key: tuple[int, int], phase: Phase) -> int:
        """In backward as in forward, where nothing was gathered in backward."""
        return self._plan.share(key, self._costs[name, phase]) or self._plan.share(
            key, self._costs[name, Phase.FORWARD]
        )


def _of_phase(costs: Mapping[tuple[int, Phase], int], phase: Phase) -> dict[int, int]:
    return {unit: ns for (unit, of), ns in costs.items() if of is phase}


def _is_use(mark: Mark, unit: int) -> bool:
    return mark.mark is UnitMark.USE and mark.unit == unit


def _is_ready(mark: Mark) -> bool:
    return mark.mark is UnitMark.READY


def _with_frees(structure: Sequence[Mark], movable: Mapping[int, int]) -> Iterator[Mark]:
    """Where a unit that keeps its parameters after forward would let them go: before the next unit is used."""
    freed = {one.unit for one in structure if one.mark is UnitMark.FREED and one.phase is Phase.FORWARD}
    last: int | None = None
    for mark in structure:
        if last is not None and mark.mark is UnitMark.USE:
            yield Mark(last, UnitMark.FREED, Phase.FORWARD)
            last = None
        yield mark
        if (
            mark.mark is UnitMark.USE
            and mark.phase is Phase.FORWARD
            and mark.unit in movable
            and mark.unit not in freed
        ):
            last = mark.unit


def _works(script: StepScript, marks: Sequence[Mark]) -> list[int]:
    """Return the work before each mark, and after the last; none before what comes with the next mark."""
    recorded = Counter(script.structure)
    works, at = [], 0
    for mark in marks:
        if recorded[mark] > 0:
            works.append(script.before_ns[at])
            at += 1
        else:
            works.append(-1)
    works.append(script.before_ns[at])
    for place, work in enumerate(works[:-1]):
        if work < 0:  # parameters are let go when the work is done
            works[place], works[place + 1] = works[place + 1], 0
    return works
