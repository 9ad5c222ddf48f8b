"""Sums up what each unit costs a typical step, and splits the exposed time of tensor parallelism by cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Final

from ddptrace.analysis.collectives.execution import weakest
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.parallelism import DimensionRow, UnitRow
from ddptrace.analysis.units.members import UNKNOWN
from ddptrace.load.tables import UnitKind
from ddptrace.schema import Evidence

EDGES: Final = ("first", "last")
BESIDE: Final = (UnitKind.BUCKET.value, UnitKind.OTHER.value)
"""Kinds that other sections show."""

Key = tuple[str, str, str, str, str | None]
"""Kind, name, dimension, role and phase."""


@dataclass(frozen=True, slots=True)
class UnitDigest:
    """What one unit does in one role and phase. Times are means over the typical steps of all ranks, also those in
    which it did nothing, so that they add up. None where no step knows it."""

    kind: str
    name: str
    dimension: str
    role: str
    phase: str | None
    calls: float  # in a step
    nbytes: int | None  # of one of its collectives, the largest
    whole_nbytes: int | None  # of the unit's parameters
    sharded_nbytes: int | None
    comm_ns: int | None
    hidden_ns: int | None
    exposed_charged_ns: int | None
    step_ratio: float | None  # exposed_charged / window of the typical step
    wait_ns: int | None
    behind_ns: int | None
    prefetch_distance: float | None  # the median
    hideable_ns: int | None
    is_root: bool
    reshards: bool | None
    blocks: bool  # the host waits for each of them at once
    evidence: Evidence | None  # the weakest


@dataclass(frozen=True, slots=True)
class Edges:
    """What of the exposed time of FSDP units no prefetch hides: mean of a typical step, in ns."""

    first_ns: int  # the first gather, with no unit before it
    last_ns: int  # the last reduction, with nothing left to compute
    root_ns: int  # the root unit's, beside these two


@dataclass(frozen=True, slots=True)
class Units:
    """All units of a run in short, most exposed first. `edges`: None where no FSDP unit was exposed."""

    units: tuple[UnitDigest, ...]
    steps: int  # (rank, step) pairs that the means are over
    window_ns: int  # of the typical step
    edges: Edges | None


def units(result: Result) -> Units:
    """Digest what FSDP units, tensor-parallel modules, pipeline stages and experts communicated in typical steps."""
    steps, _ = measured_steps(result.steps)
    wanted = {(row.rank, row.step) for row in steps}
    rows = [row for row in result.units if row.kind not in BESIDE and (row.rank, row.step) in wanted]
    window_ns = round(sum(row.window_ns for row in steps) / len(steps)) if steps else 0
    by_key: defaultdict[Key, list[UnitRow]] = defaultdict(list)
    for row in rows:
        by_key[row.kind, row.name, row.dimension, row.role, row.phase].append(row)
    found = [_digest(key, mine, len(steps), window_ns) for key, mine in by_key.items()]
    found.sort(key=lambda unit: -(unit.exposed_charged_ns or 0))
    return Units(tuple(found), len(steps), window_ns, _edges(rows, len(steps)))


def _digest(key: Key, rows: Sequence[UnitRow], steps: int, window_ns: int) -> UnitDigest:
    exposed = _mean((row.exposed_charged_ns for row in rows), steps)
    distances = [row.prefetch_distance for row in rows if row.prefetch_distance is not None]
    return UnitDigest(
        *key,
        calls=len(rows) / steps,
        nbytes=max((row.nbytes for row in rows if row.nbytes is not None), default=None),
        whole_nbytes=rows[-1].whole_nbytes,
        sharded_nbytes=rows[-1].sharded_nbytes,
        comm_ns=_mean((row.comm_ns for row in rows), steps),
        hidden_ns=_mean((row.hidden_ns for row in rows), steps),
        exposed_charged_ns=exposed,
        step_ratio=exposed / window_ns if exposed is not None and window_ns else None,
        wait_ns=_mean((row.wait_ns for row in rows), steps),
        behind_ns=_mean((row.behind_ns for row in rows), steps),
        prefetch_distance=median(distances) if distances else None,
        hideable_ns=_mean((row.hideable_ns for row in rows if row.edge is None), steps),
        is_root=rows[-1].is_root,
        reshards=rows[-1].reshards,
        blocks=all(row.blocks for row in rows),
        evidence=weakest(row.evidence for row in rows),
    )


def _mean(values: Iterable[int | None], steps: int) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / steps) if known else None


def _edges(rows: Sequence[UnitRow], steps: int) -> Edges | None:
    fsdp = [row for row in rows if row.kind == UnitKind.FSDP.value and row.exposed_charged_ns]
    if not fsdp:
        return None
    first, last = (_mean((row.exposed_charged_ns for row in fsdp if row.edge == edge), steps) for edge in EDGES)
    root = _mean((row.exposed_charged_ns for row in fsdp if row.is_root and row.edge is None), steps)
    return Edges(first or 0, last or 0, root or 0)


# Dimensions -----------------------------------------------------------------------------------------------------------


PARTS: Final = ("peer_wait_ns", "bubble_ns", "transfer_ns", "unmatched_ns")


@dataclass(frozen=True, slots=True)
class DimensionDigest:
    """What communication along one dimension of parallelism costs a typical step: means over its (rank, step) pairs."""

    dimension: str
    mesh: str  # empty where it has no name, or none is known
    calls: float | None  # None where no step knows it
    exposed_charged_ns: int | None  # None where not all of the steps know it, as the next four, which add up to it
    step_ratio: float | None
    peer_wait_ns: int | None  # as in `dimensions`
    bubble_ns: int | None
    transfer_ns: int | None
    unmatched_ns: int | None

    @property
    def is_known(self) -> bool:
        """Whether its collectives were recorded."""
        return self.dimension != UNKNOWN


def dimensions(result: Result) -> list[DimensionDigest]:
    """Return the dimensions of a typical step, the most exposed first."""
    steps, _ = measured_steps(result.steps)
    wanted = {(row.rank, row.step) for row in steps}
    window_ns = sum(row.window_ns for row in steps)
    by_place: defaultdict[tuple[str, str], list[DimensionRow]] = defaultdict(list)
    for row in result.dimensions:
        if (row.rank, row.step) in wanted:
            by_place[row.dimension, row.mesh].append(row)
    found = [_dimension(place, rows, len(steps), window_ns) for place, rows in by_place.items()]
    return sorted(found, key=lambda one: -(one.exposed_charged_ns or 0))


def unrecorded_ns(result: Result) -> int:
    """Return how long a typical step is exposed to kernels of no recorded call."""
    return next((one.exposed_charged_ns or 0 for one in dimensions(result) if not one.is_known), 0)


def _dimension(place: tuple[str, str], rows: Sequence[DimensionRow], steps: int, window_ns: int) -> DimensionDigest:
    exposed = _whole(rows, "exposed_charged_ns")
    return DimensionDigest(
        *place,
        None if (calls := _whole(rows, "calls")) is None else calls / steps,
        None if exposed is None else round(exposed / steps),
        exposed / window_ns if exposed is not None and window_ns else None,
        *(None if (ns := _whole(rows, part)) is None else round(ns / steps) for part in PARTS),
    )


def _whole(rows: Sequence[DimensionRow], name: str) -> int | None:
    """None where not all of the rows know it."""
    known = [ns for row in rows if (ns := getattr(row, name)) is not None]
    return sum(known) if len(known) == len(rows) else None


# Why tensor parallelism is exposed ------------------------------------------------------------------------------------


AT_ONCE_NS: Final = 100_000
"""Computing less than this between launch and need is the way from one operator to the next."""
AT_ONCE_RATIO: Final = 0.1
"""The same, of the communication's own time."""


@dataclass(frozen=True, slots=True)
class TensorCost:
    """Exposed communication of tensor-parallel modules: means over the typical steps, in ns."""

    exposed_ns: int
    by_nature_ns: int  # the result was needed at once
    by_order_ns: int  # the rank computed between launch and need, for less time than the communication took
    worst: tuple[str, str | None]  # module and phase that expose most


def tensor_cost(result: Result) -> TensorCost | None:
    """None without tensor parallelism, or where nothing tells when a result was needed."""
    steps, _ = measured_steps(result.steps)
    wanted = {(row.rank, row.step) for row in steps}
    tensor = UnitKind.TENSOR.value
    rows = [row for row in result.units if row.kind == tensor and (row.rank, row.step) in wanted]
    rows = [row for row in rows if row.exposed_charged_ns]
    if not rows or not any(row.slack_ns is not None for row in rows):
        return None
    costs: Counter[tuple[str, str | None]] = Counter()
    for row in rows:
        costs[row.name, row.phase] += row.exposed_charged_ns or 0
    regions: defaultdict[tuple[int, str, str | None, str], list[UnitRow]] = defaultdict(list)
    for row in rows:
        if row.slack_ns is not None:
            regions[row.rank, row.name, row.phase, row.role].append(row)
    nature = sum(_exposed_ns(mine) for mine in regions.values() if is_needed_at_once(mine))
    order = sum(map(_exposed_ns, regions.values())) - nature
    exposed, nature, order = (round(ns / len(steps)) for ns in (_exposed_ns(rows), nature, order))
    return TensorCost(exposed, nature, order, max(costs, key=costs.__getitem__))


def is_needed_at_once(rows: Sequence[UnitRow]) -> bool:
    """Whether a rank mostly computes next to nothing between launch and need. `rows`: of one region, with their
    slack."""
    slack, took = (median_low([getattr(row, name) or 0 for row in rows]) for name in ("slack_ns", "comm_ns"))
    return slack <= max(AT_ONCE_NS, AT_ONCE_RATIO * took)


def _exposed_ns(rows: Iterable[UnitRow]) -> int:
    return sum(row.exposed_charged_ns or 0 for row in rows)
