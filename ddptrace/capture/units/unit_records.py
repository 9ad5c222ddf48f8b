"""Records of units: who they are, which collectives are theirs, and what else happens to them.

unshard(unit)   thread.unit = part ─┐
  all_gather ──▶ tap: CALL ── part.call(seq) ──▶ UNIT_CALL
                thread.unit = before
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Final

from ddptrace.record import Recorder
from ddptrace.schema import Kind, Phase, UnitRole

UNIT_CALL, UNIT_MARK = int(Kind.UNIT_CALL), int(Kind.UNIT_MARK)

BY_OP: Final = (
    ("all_gather", int(UnitRole.UNSHARD)),
    ("reduce_scatter", int(UnitRole.REDUCE_SCATTER)),
    ("all_reduce", int(UnitRole.ALL_REDUCE)),
)
"""What collectives of sharded parameters do, by the begin of their names."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a thread does for a unit at present: the collectives that it issues meanwhile are the unit's."""

    recorder: Recorder
    unit: int
    phase: int
    role: int | None = None  # None: told by the operation
    microbatch: int | None = None
    turn: int | None = None
    anchors: dict[str, Any] = field(default_factory=dict, compare=False)
    """By operation, the `Anchor` of its last call (`capture/origins/call_sites.py`)."""

    alike: dict[str, Any] = field(default_factory=dict, compare=False)
    """By operation, what its next call is expected to be (`capture/collectives/unit_sends.py`)."""

    def call(self, seq: int, launch: int, op: str) -> None:
        """Record that a collective is the unit's."""
        role = self.role if self.role is not None else _role_of(op)
        turn, microbatch = _plus_one(self.turn), _plus_one(self.microbatch)
        self.recorder.event(UNIT_CALL, role, 0, launch, launch, seq, self.unit, turn, 0, self.phase, microbatch)


def _plus_one(number: int | None) -> int:
    return 0 if number is None else number + 1


@cache
def _role_of(op: str) -> int:
    return next((role for begin, role in BY_OP if op.startswith(begin)), int(UnitRole.OTHER))


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A process group over which a unit communicates: its name in the records, the dimension of its DeviceMesh (empty
    where that has no name), and the role of the collectives in it."""

    group: str
    dimension: str
    role: UnitRole


class UnitRecords:
    """Numbers the units of a process from 1."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._count = 0

    def unit(
        self,
        kind: str,
        module: str,
        groups: Sequence[DescribedGroup],
        parameters: Sequence[dict[str, Any]],
        **more: Any,
    ) -> int:
        """Record a new unit, and return its number.

        Args:
            kind: As in `load.tables.UnitKind`.
            module: Path of its module.
            groups: Over which it communicates.
            parameters: Name, dtype, nbytes and sharded_nbytes of each.
            more: Other fields of the description: `reshards`, `root`.
        """
        self._count += 1
        content = {"unit": self._count, "kind": kind, "module": module, "parameters": parameters}
        content |= {"groups": [asdict(group) for group in groups]} | more
        self._recorder.describe(Kind.UNIT, json.dumps(content))
        return self._count

    def part(
        self,
        unit: int,
        phase: int,
        role: int | None = None,
        microbatch: int | None = None,
        turn: int | None = None,
    ) -> Part:
        """Return what to put into `ThreadState.unit` while a thread communicates for a unit."""
        return Part(self._recorder, unit, phase, role, microbatch, turn)

    def mark(
        self,
        unit: int,
        mark: int,
        begin: int,
        end: int,
        *,
        phase: int = 0,
        microbatch: int | None = None,
        turn: int | None = None,
    ) -> None:
        """Record what happened to a unit. `phase`: 0 where unknown."""
        self._recorder.event(UNIT_MARK, mark, 0, begin, end, unit, 0, _plus_one(turn), 0, phase, _plus_one(microbatch))


FORWARD, BACKWARD = int(Phase.FORWARD), int(Phase.BACKWARD)
