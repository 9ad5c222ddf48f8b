"""Tells which unit each communication of a rank belongs to, and along which dimension of parallelism it goes.

a bucket      the occurrence that it carried
recorded      the UNIT_CALL record of its call, or a foreign trace's ranges
by origin     FSDP, DTensor, pipelines and experts, by the module that it was issued for; a foreign trace tells only
                the module's class, which is no unit
other         none, and why

The dimension is told by, strongest first: the mesh of the collective's unit; the name of its process group, which a
DeviceMesh gives it; what the unit is; for what DTensor wants for no module, such as the norm of all gradients, the FSDP
units that communicate in its group; who wanted the collective.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.buckets.occurrences import Occurrence
from ddptrace.analysis.collectives.execution import Communication
from ddptrace.load.tables import Call, Identity, RankRun, Unit, UnitKind
from ddptrace.ops import family_of
from ddptrace.rows import row
from ddptrace.schema import Origin, UnitRole

KIND_BY_ORIGIN: Final = {
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


@row
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
    units, names, dimensions = {unit.unit: unit for unit in rank.units}, unit_names(rank.units), Dimensions(rank)
    return tuple(_member(comm, carried.get(comm.seq), units, names, dimensions) for comm in comms)


def unit_names(units: Sequence[Unit]) -> dict[int, str]:
    """Return the names of a rank's units by number: the paths of their modules, and the numbers of pipeline stages. Of
    several with the same name, as of two root modules of one class, the second is called "Stack #2"."""
    times: Counter[tuple[UnitKind, str]] = Counter()
    names = {}
    for unit in units:
        name = unit.module if unit.stage is None else f"stage {unit.stage.number}"
        times[unit.kind, name] += 1
        nth = times[unit.kind, name]
        names[unit.unit] = name if nth == 1 else f"{name} #{nth}"
    return names


def _member(
    comm: Communication,
    bucket: Occurrence | None,
    units: Mapping[int, Unit],
    names: Mapping[int, str],
    dimensions: Dimensions,
) -> Member:
    if bucket is not None or comm.call is None:
        name = "bucket" if bucket is None else f"bucket {bucket.index}"
        return Member(UnitKind.BUCKET, name, dimensions.of_gradients(comm.call), UnitRole.ALL_REDUCE.word)
    call = comm.call
    unit = None if call.unit is None else units.get(call.unit)
    kind = KIND_BY_ORIGIN.get(call.origin or "") if unit is None else unit.kind
    place = dimensions.of(call, kind, unit)
    if unit is not None:
        return Member(unit.kind, names[unit.unit], place, _role(call, unit.kind), unit)
    if kind is not None and call.module and call.identity is Identity.RECORDED:
        return Member(kind, call.module, place, _role(call, kind))
    op = _operation(call)
    return Member(UnitKind.OTHER, op, place, op, reason=_reason(call, kind))


def _operation(call: Call) -> str:
    return family_of(call.op).name or call.op


def _role(call: Call, kind: UnitKind) -> str:
    family = _operation(call)
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


# Along which dimension of parallelism it goes -------------------------------------------------------------------------


DP, FSDP, TP, PP, EP, CP, OTHER = "dp", "fsdp", "tp", "pp", "ep", "cp", "other"
UNKNOWN: Final = "unknown"
"""Of kernels of no recorded call."""

NAMES_OF_DIMENSIONS: Final = (
    (FSDP, r"fsdp|shard"),
    (TP, r"tp|tensor|sp|sequence|model|mp"),
    (CP, r"cp|context"),
    (PP, r"pp|pipe|pipeline|stage"),
    (EP, r"ep|etp|expert|moe"),
    (DP, r"dp|ddp|data|replicate|replica|batch"),
)
"""The dimension that a name of a mesh's dimension means, by the parts of the name: "dp_shard" is sharded."""

DIMENSION_BY_KIND: Final = {
    UnitKind.FSDP: FSDP,
    UnitKind.TENSOR: TP,
    UnitKind.PIPELINE: PP,
    UnitKind.EXPERT: EP,
    UnitKind.BUCKET: DP,
}
DIMENSION_BY_ORIGIN: Final = {
    Origin.GRADIENTS.word: DP,
    Origin.HOOK.word: DP,
    Origin.BUFFERS.word: DP,
    Origin.CONSTRUCTION.word: DP,
    Origin.REBUILD.word: DP,
    Origin.UNUSED_PARAMETERS.word: DP,
    Origin.ZERO.word: DP,
    Origin.OPTIMIZER.word: DP,
    Origin.EMBEDDINGS.word: OTHER,
}
MESH_GROUP: Final = re.compile(r"^mesh_(?P<name>.+)$")
"""How torch's DeviceMesh describes the group of a dimension."""


@row
@dataclass(frozen=True, slots=True)
class Place:
    """A dimension of parallelism, and what the program's DeviceMesh calls it; empty where that is not known."""

    dimension: str
    mesh: str = ""


def meaning(name: str) -> str | None:
    """Return the dimension that a mesh's name for it means; None if the name tells nothing."""
    parts = set(re.split(r"[^a-z]+", name.lower()))
    return next((dimension for dimension, words in NAMES_OF_DIMENSIONS if parts & set(words.split("|"))), None)


class Dimensions:
    """Places of one rank's collectives."""

    def __init__(self, rank: RankRun) -> None:
        self._fsdp = {
            group.group: DP if group.role is UnitRole.ALL_REDUCE else FSDP
            for unit in reversed(rank.units)
            if unit.kind is UnitKind.FSDP
            for group in reversed(unit.groups)
        }
        self._meshes = {
            group.name: match["name"] for group in rank.groups if (match := MESH_GROUP.match(group.description))
        }

    def of(self, call: Call, kind: UnitKind | None, unit: Unit | None) -> Place:
        """Return the place of a call of a unit, which need not have been recorded."""
        mesh = (_mesh_of(unit, call) if unit is not None else "") or self._meshes.get(call.group, "")
        if unit is not None and unit.kind is UnitKind.FSDP:
            if call.role is not UnitRole.ALL_REDUCE:
                return Place(FSDP, mesh)
            is_own = not unit.groups or any(group.group == call.group for group in unit.groups)
            return Place(DP if is_own else meaning(mesh) or TP, mesh)
        by_kind = None if kind is None else DIMENSION_BY_KIND.get(kind)
        if kind is UnitKind.TENSOR and not call.module:
            by_kind = self._fsdp.get(call.group, by_kind)
        return Place(meaning(mesh) or by_kind or DIMENSION_BY_ORIGIN.get(call.origin or "") or OTHER, mesh)

    def of_gradients(self, call: Call | None) -> Place:
        """Return the place of a bucket's collective; None: of a hook without one."""
        return Place(DP, "" if call is None else self._meshes.get(call.group, ""))


def _mesh_of(unit: Unit, call: Call) -> str:
    """The mesh's name of the dimension that a unit's call goes along: of its group, and of its role where several
    dimensions share one."""
    mine = [group for group in unit.groups if group.group == call.group]
    same = [group for group in mine if group.role is call.role] or mine
    return same[0].dimension if same else ""
