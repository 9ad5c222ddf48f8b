"""Words for units: what a gather of parameters is called, and what no prefetch hides."""

from __future__ import annotations

from typing import Final

from ddptrace.analysis.units.digest import DimensionDigest, Edges, UnitDigest, Units
from ddptrace.units import duration

DIMENSIONS: Final = {
    "dp": "data parallel",
    "fsdp": "sharded data parallel",
    "tp": "tensor parallel",
    "pp": "pipeline parallel",
    "ep": "expert parallel",
    "cp": "context parallel",
    "other": "other",
}


def dimension_words(one: DimensionDigest) -> str:
    """As in "tp (tensor parallel)"."""
    words = DIMENSIONS[one.dimension]
    return words if words == one.dimension else f"{one.dimension} ({words})"


def role_words(unit: UnitDigest) -> str:
    """As in "unshard, backward"."""
    return unit.role if unit.phase is None else f"{unit.role}, {unit.phase}"


def ahead_words(unit: UnitDigest) -> str:
    """How many units ahead of its use it is gathered, in figures; "-" for what is no gather."""
    return "-" if unit.prefetch_distance is None else f"{unit.prefetch_distance:g}"


def edge_words(units: Units) -> str:
    """What of the exposed time of FSDP units no earlier launch hides; empty where nothing is exposed."""
    return "" if units.edges is None else _edge_words(units.edges)


def _edge_words(edges: Edges) -> str:
    parts = [
        f"{duration(ns)} the {what}"
        for ns, what in (
            (edges.first_ns, "first gather"),
            (edges.last_ns, "last reduction"),
            (edges.root_ns, "rest of the root unit"),
        )
        if ns
    ]
    return f"Of this, with nothing before or after it to hide it: {', '.join(parts)}." if parts else ""
