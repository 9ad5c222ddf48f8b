"""When a unit's parameters were needed and freed, when its gradients were ready, and how early they were gathered.

uses       ├ a ┤           ├ b ┤          ├ c ┤
gathers       ├── b ──┤                             in the use of a: 1 unit ahead of its own use
              ├──────── c ──────────┤               2 units ahead
                                          ├ c ┤     launched when it was needed: 0
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ddptrace.load.tables import UnitEvent
from ddptrace.schema import Phase, UnitMark


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a unit's parameters. `place`: among all uses of the rank, in time order."""

    place: int
    begin_at_ns: int
    end_at_ns: int
    phase: Phase | None


class Uses:
    """What happened to the units of one rank."""

    def __init__(self, events: Sequence[UnitEvent]) -> None:
        used = sorted((one for one in events if one.mark is UnitMark.USE), key=lambda one: one.begin_at_ns)
        self._begins = [one.begin_at_ns for one in used]
        self._phases = [one.phase for one in used]
        self._uses: defaultdict[int, list[Use]] = defaultdict(list)
        for place, one in enumerate(used):
            self._uses[one.unit].append(Use(place, one.begin_at_ns, one.end_at_ns, one.phase))
        self._ready = _begins(events, UnitMark.READY)
        self._freed = _begins(events, UnitMark.FREED)

    def after(self, unit: int, launch_at_ns: int) -> Use | None:
        """Return the use that a gather launched at this instant was for: the first one that was not over."""
        uses = self._uses.get(unit, [])
        place = bisect_right(uses, launch_at_ns, key=lambda use: use.end_at_ns)
        return uses[place] if place < len(uses) else None

    def distance(self, use: Use, launch_at_ns: int) -> int:
        """Return how many units ahead of its use a gather was launched."""
        return max(0, use.place - (bisect_right(self._begins, launch_at_ns) - 1))

    def before(self, use: Use, launch_at_ns: int) -> int | None:
        """Return when the unit before came to use: the earliest instant at which a gather launched one unit earlier can
        be under way. None without such a unit in the phase of the gather's own use."""
        place = bisect_right(self._begins, launch_at_ns) - 2
        return self._begins[place] if place >= 0 and self._phases[place] is use.phase else None

    def ready(self, unit: int, launch_at_ns: int) -> int | None:
        """Return when the gradients were ready that a unit sent at this instant."""
        mine = self._ready.get(unit, [])
        before = bisect_right(mine, launch_at_ns)
        return mine[before - 1] if before else None

    def freed(self, unit: int, at_ns: int) -> int | None:
        """Return when the unit's whole parameters were let go after an instant; None if they were not."""
        mine = self._freed.get(unit, [])
        after = bisect_left(mine, at_ns)
        return mine[after] if after < len(mine) else None


def _begins(events: Sequence[UnitEvent], mark: UnitMark) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for one in events:
        if one.mark is mark:
            found[one.unit].append(one.begin_at_ns)
    return {unit: sorted(instants) for unit, instants in found.items()}
