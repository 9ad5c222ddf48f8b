"""Units of a rank, which of its collectives is of which unit, and what else happened to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ddptrace.load.records.described import Content, each
from ddptrace.load.records.rank_events import BEGIN, END, FLAGS, A, B, C, E, F, Row
from ddptrace.load.tables import Stage, Unit, UnitEvent, UnitGroup, UnitKind, UnitParameter
from ddptrace.schema import Phase, UnitMark, UnitRole

ROLES: Final = frozenset(UnitRole)
MARKS: Final = frozenset(UnitMark)
PHASES: Final = frozenset(Phase)


def described_units(described: Iterable[Content]) -> tuple[Unit, ...]:
    """Return the units that a rank described, in the order of their numbers."""
    return tuple(sorted(each(described, _unit), key=lambda unit: unit.unit))


def _unit(content: Content) -> Unit:
    reshards = content.get("reshards")
    return Unit(
        int(content["unit"]),
        UnitKind(content["kind"]),
        str(content["module"]),
        tuple(
            UnitParameter(str(p["name"]), str(p["dtype"]), int(p["nbytes"]), int(p["sharded_nbytes"]))
            for p in content.get("parameters", ())
        ),
        tuple(
            UnitGroup(str(g["group"]), str(g.get("dimension") or ""), _role(int(g.get("role", 0))))
            for g in content.get("groups", ())
        ),
        reshards if isinstance(reshards, bool) else None,
        bool(content.get("root", False)),
        _stage(content["stage"]) if "stage" in content else None,
    )


def _stage(content: Content) -> Stage:
    return Stage(
        int(content["pipeline"]),
        int(content["number"]),
        tuple(map(int, content["ranks"])),
        str(content["schedule"]),
        int(content["microbatches"]),
    )


class UnitCall(NamedTuple):
    """As in `Call`."""

    unit: int | None
    role: UnitRole
    unit_phase: Phase | None
    microbatch: int | None
    unit_turn: int | None


OF_NONE: Final = UnitCall(None, UnitRole.OTHER, None, None, None)


class UnitCalls:
    """The units of one rank's calls. `rows`: its UNIT_CALL records."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._said = {row[A]: row for row in rows}

    def of(self, seq: int) -> UnitCall:
        """Return the unit of a call by its seq."""
        said = self._said.get(seq)
        return (
            OF_NONE
            if said is None
            else UnitCall(said[B], _role(said[FLAGS]), _phase(said[E]), _less_one(said[F]), _less_one(said[C]))
        )


def unit_events(rows: Iterable[Row]) -> tuple[UnitEvent, ...]:
    """Return what happened to units, in time order. `rows`: UNIT_MARK records."""
    return tuple(
        UnitEvent(
            row[A],
            UnitMark(row[FLAGS]),
            row[BEGIN],
            row[END],
            _phase(row[E]),
            _less_one(row[F]),
            _less_one(row[C]),
        )
        for row in rows
        if row[FLAGS] in MARKS
    )


def _role(number: int) -> UnitRole:
    return UnitRole(number) if number in ROLES else UnitRole.OTHER


def _phase(number: int) -> Phase | None:
    return Phase(number) if number in PHASES else None


def _less_one(number: int) -> int | None:
    return number - 1 if number else None
