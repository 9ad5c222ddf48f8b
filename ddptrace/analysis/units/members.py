"""Which unit each communication of a rank belongs to, told by the strongest of what is known.

a bucket      the occurrence that it carried
recorded      the UNIT_CALL record of its call, or a foreign trace's ranges
by origin     FSDP, DTensor, pipelines and experts, by the module that it was issued for; a foreign trace tells only
                the module's class, which is no unit
other         none, and why
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.buckets.occurrences import Occurrence
from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.units.places import Dimensions, Place
from ddptrace.load.tables import Call, Identity, RankRun, Unit, UnitKind
from ddptrace.ops import family_of
from ddptrace.schema import Origin, UnitRole

BY_ORIGIN: Final = {
    Origin.FSDP.word: UnitKind.FSDP,
    Origin.DTENSOR.word: UnitKind.TENSOR,
    Origin.TENSOR_PARALLEL.word: UnitKind.TENSOR,
    Origin.PIPELINE.word: UnitKind.PIPELINE,
    Origin.MOE.word: UnitKind.EXPERT,
}
"""Whoever wants such a collective wants it for a module: that is its unit where none was recorded."""

ROLES: Final = {
    "all_gather": UnitRole.UNSHARD.word,
    "reduce_scatter": UnitRole.REDUCE_SCATTER.word,
    "all_reduce": UnitRole.ALL_REDUCE.word,
}
"""What FSDP does with a collective of which nothing else tells its role, by family."""


@dataclass(frozen=True, slots=True)
class Member:
    """What one communication is to its unit."""

    kind: UnitKind
    name: str
    place: Place  # in the parallelism of the run
    role: str
    unit: Unit | None = None
    reason: str | None = None  # why it belongs to no unit


def members(rank: RankRun, comms: Sequence[Communication], found: Sequence[Occurrence]) -> tuple[Member, ...]:
    """Return the member that each communication is. `found`: the rank's buckets."""
    carried = {comm.seq: occurrence for occurrence in found for comm in occurrence.comms}
    units, dimensions = {unit.unit: unit for unit in rank.units}, Dimensions(rank)
    return tuple(_member(comm, carried.get(comm.seq), units, dimensions) for comm in comms)


def _member(
    comm: Communication, bucket: Occurrence | None, units: Mapping[int, Unit], dimensions: Dimensions
) -> Member:
    if bucket is not None or comm.call is None:
        name = "bucket" if bucket is None else f"bucket {bucket.index}"
        return Member(UnitKind.BUCKET, name, dimensions.of_gradients(comm.call), UnitRole.ALL_REDUCE.word)
    call = comm.call
    unit = None if call.unit is None else units.get(call.unit)
    kind = BY_ORIGIN.get(call.origin or "") if unit is None else unit.kind
    place = dimensions.of(call, kind, unit)
    if unit is not None:
        name = unit.module if unit.stage is None else f"stage {unit.stage.number}"
        return Member(unit.kind, name, place, _role(call, unit.kind), unit)
    if kind is not None and call.module and call.identity is Identity.RECORDED:
        return Member(kind, call.module, place, _role(call, kind))
    return Member(UnitKind.OTHER, family_of(call.op).name, place, family_of(call.op).name, reason=_reason(call, kind))


def _role(call: Call, kind: UnitKind) -> str:
    family = family_of(call.op).name
    if call.role is not UnitRole.OTHER:
        return call.role.word
    return ROLES.get(family, family) if kind is UnitKind.FSDP else family


def _reason(call: Call, kind: UnitKind | None) -> str:
    if kind is not None:
        return f"{call.origin} issued it for no module that is known by name"
    if call.origin is None:
        return "nothing tells who wanted it"
    if call.origin == Origin.PROGRAM.word:
        return "the program issued it by itself"
    return f"{call.origin}: it serves no unit"
