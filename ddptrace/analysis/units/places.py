"""Along which dimension of parallelism each collective goes.

A dimension is told by, strongest first: the mesh of the collective's unit; the name of its process group, which a
DeviceMesh gives it; what the unit is; for what DTensor wants for no module, such as the norm of all gradients, the FSDP
units that communicate in its group; who wanted the collective.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ddptrace.load.tables import Call, RankRun, Unit, UnitKind
from ddptrace.schema import Origin, UnitRole

DP, FSDP, TP, PP, EP, CP, OTHER = "dp", "fsdp", "tp", "pp", "ep", "cp", "other"

NAMES: Final = (
    (FSDP, r"fsdp|shard"),
    (TP, r"tp|tensor|sp|sequence|model|mp"),
    (CP, r"cp|context"),
    (PP, r"pp|pipe|pipeline|stage"),
    (EP, r"ep|etp|expert|moe"),
    (DP, r"dp|ddp|data|replicate|replica|batch"),
)
"""The dimension that a name of a mesh's dimension means, by the parts of the name: "dp_shard" is sharded."""

BY_KIND: Final = {
    UnitKind.FSDP: FSDP,
    UnitKind.TENSOR: TP,
    UnitKind.PIPELINE: PP,
    UnitKind.EXPERT: EP,
    UnitKind.BUCKET: DP,
}
BY_ORIGIN: Final = {
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


@dataclass(frozen=True, slots=True)
class Place:
    """A dimension of parallelism, and what the program's DeviceMesh calls it; empty where that is not known."""

    dimension: str
    mesh: str = ""


def meaning(name: str) -> str | None:
    """Return the dimension that a mesh's name for it means; None if the name tells nothing."""
    parts = set(re.split(r"[^a-z]+", name.lower()))
    return next((dimension for dimension, words in NAMES if parts & set(words.split("|"))), None)


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
        by_kind = None if kind is None else BY_KIND.get(kind)
        if kind is UnitKind.TENSOR and not call.module:
            by_kind = self._fsdp.get(call.group, by_kind)
        return Place(meaning(mesh) or by_kind or BY_ORIGIN.get(call.origin or "") or OTHER, mesh)

    def of_gradients(self, call: Call | None) -> Place:
        """Return the place of a bucket's collective; None: of a hook without one."""
        return Place(DP, "" if call is None else self._meshes.get(call.group, ""))


def _mesh_of(unit: Unit, call: Call) -> str:
    """The mesh's name of the dimension that a unit's call goes along: of its group, and of its role where several
    dimensions share one."""
    mine = [group for group in unit.groups if group.group == call.group]
    same = [group for group in mine if group.role is call.role] or mine
    return same[0].dimension if same else ""
