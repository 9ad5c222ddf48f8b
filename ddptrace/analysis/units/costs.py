"""What changes of FSDP units would save a typical step: earlier gathers, parameters that stay, units of another size.

Each saving is an upper bound: what is exposed and could be hidden, and no more than the computation beside it. Waiting
for late ranks is no part of it: if a gather does not wait for them, another collective does. What is queued behind
other collectives on all ranks waits for none: a rank that comes late to it was late since these ended late there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Final

from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.parallelism import DimensionRow, UnitRow
from ddptrace.analysis.units.members import FSDP, unit_names
from ddptrace.load.tables import Unit, UnitKind
from ddptrace.schema import Phase, UnitRole

REDUCTIONS: Final = (UnitRole.REDUCE_SCATTER.word, UnitRole.ALL_REDUCE.word)
LARGE_NBYTES: Final = 1 << 16
"""Of less, half takes as long."""
QUEUED_RATIO: Final = 0.9
TOO_LARGE: Final = 4
"""Times the median of the other units, from which on a unit is far too large."""


@dataclass(frozen=True, slots=True)
class EarlierGathers:
    """Gathers of one phase that the computation beside them would hide, were they launched one unit earlier."""

    phase: Phase
    units: tuple[str, ...]  # the most exposed first
    exposed_ns: int  # of a typical step
    saved_ns: int
    distance: float  # median: how many units ahead they are launched now
    blocks: bool  # the host waits for most of them at once


@dataclass(frozen=True, slots=True)
class KeptParameters:
    """Gathers in backward of parameters that were let go after forward."""

    units: int
    exposed_ns: int
    saved_ns: int
    nbytes: int  # more memory of a rank, if they stay: its shards stay anyway


@dataclass(frozen=True, slots=True)
class LargeUnit:
    """A unit that is far larger than the others, or the only one."""

    name: str
    nbytes: int
    others: int
    median_nbytes: int | None  # of the others
    exposed_ns: int
    saved_ns: int
    parts: tuple[str, ...]  # modules inside it that have half of its bytes, of the only unit all; the largest first


@dataclass(frozen=True, slots=True)
class WideReductions:
    """Reductions of gradients in float32."""

    units: int
    exposed_ns: int
    saved_ns: int


@dataclass(frozen=True, slots=True)
class QueuedGathers:
    """Gathers in backward that are queued behind other collectives of their process group."""

    units: int
    saved_ns: int


@dataclass(frozen=True, slots=True)
class EarlyReductions:
    """Reductions in all but the last of the backwards of one update, whose gradients are accumulated."""

    backwards: float  # of an update, the median
    units: int
    exposed_ns: int  # of a typical step
    saved_ns: int
    nbytes: int  # more memory of a rank, if whole gradients wait for the last backward: shards are there anyway
    tails_ns: int  # part of saved_ns: of the last reduction of each of these backwards, for which the host waits


class FsdpCosts:
    """Of the FSDP units of a run, over its typical steps."""

    def __init__(self, result: Result, ranks: Sequence[RankFacts]) -> None:
        steps, _ = measured_steps(result.steps)
        wanted = {(row.rank, row.step) for row in steps}
        fsdp = UnitKind.FSDP.value
        rows = [row for row in result.units if row.kind == fsdp and row.unit and (row.rank, row.step) in wanted]
        self._rows = rows
        self._steps = len(steps)
        self._unqueued = {(row.step, row.unit, row.role, row.phase) for row in rows if not _waits_in_queue(row)}
        self._gathers = [row for row in rows if row.role == UnitRole.UNSHARD.word and row.exposed_charged_ns]
        self._compute_ns = self._mean(row.compute_ns or 0 for row in steps)
        self._silent_ns = self._mean(row.window_ns - (row.comm_ns or 0) for row in steps)
        shards = [one for one in result.dimensions if one.dimension == FSDP and (one.rank, one.step) in wanted]
        self._transfer_ratio = _transfer_ratio(shards)
        self._dtypes = {(row.rank, row.seq): row.dtype for row in result.collectives if row.part == 0}
        self._units = next((list(filter(_is_sharded, rank.units)) for rank in ranks if rank.units), [])

    def earlier(self, phase: Phase) -> EarlierGathers | None:
        """Return the gathers of a phase that are worth launching earlier; None if nothing would hide them."""
        late = [row for row in self._gathers if row.phase == phase.name.lower() and row.hideable_ns]
        if not late:
            return None
        return EarlierGathers(
            phase,
            _by_cost(late),
            self._mean(row.exposed_charged_ns or 0 for row in late),
            self._transfer(self._mean(row.hideable_ns or 0 for row in late)),
            median(row.prefetch_distance or 0 for row in late),
            2 * sum(row.blocks for row in late) > len(late),
        )

    def kept(self) -> KeptParameters | None:
        """Return what `reshard_after_forward=False` would save; None if no unit gathers anew in backward."""
        again = [row for row in self._gathers if row.reshards and row.phase == Phase.BACKWARD.name.lower()]
        if not again:
            return None
        nbytes = {row.unit: row.nbytes or 0 for row in again}
        exposed_ns = self._mean(row.exposed_charged_ns or 0 for row in again)
        saved_ns = min(self._saved((row, self._on_the_wire(row)) for row in again), self._backward_ns)
        return KeptParameters(len(nbytes), exposed_ns, saved_ns, sum(nbytes.values()))

    def _on_the_wire(self, row: UnitRow) -> int:
        """What its absence wins: in a queue, what comes behind it begins earlier by all of it."""
        return (row.comm_ns if self._is_queued(row) else row.exposed_charged_ns) or 0

    @property
    def _backward_ns(self) -> int:
        """What is exposed in backward."""
        backward = (row for row in self._rows if row.phase == Phase.BACKWARD.name.lower())
        return self._mean(row.exposed_charged_ns or 0 for row in backward)

    def wide(self) -> WideReductions | None:
        """Return what reductions in half the bytes would save; None if none is large enough, and in float32."""
        wide = [row for row in self._rows if row.role in REDUCTIONS and row.exposed_charged_ns and self._is_wide(row)]
        if not wide:
            return None
        exposed = self._mean(row.exposed_charged_ns or 0 for row in wide)
        saved = self._saved((row, min((row.comm_ns or 0) // 2, row.exposed_charged_ns or 0)) for row in wide)
        return WideReductions(len({row.unit for row in wide}), exposed, saved)

    def _is_wide(self, row: UnitRow) -> bool:
        return (row.nbytes or 0) >= LARGE_NBYTES and self._dtypes.get((row.rank, row.seq)) == "float32"

    def queued(self) -> QueuedGathers | None:
        """Return what gathers would save if reductions did not hold them up, which is no more than the time in which
        nothing is sent; None if nothing does."""
        backward = Phase.BACKWARD.name.lower()
        queued = [row for row in self._gathers if row.phase == backward and row.behind_ns and not row.blocks]
        if not queued:
            return None
        saved = self._saved((row, min(row.exposed_charged_ns or 0, row.behind_ns or 0)) for row in queued)
        return QueuedGathers(len({row.unit for row in queued}), min(saved, self._silent_ns))

    def early(self) -> EarlyReductions | None:
        """Return what it would save to reduce once in each update; None if nothing is reduced more often."""
        found = [one for rows in self._by_step().values() if (one := _early_reductions(rows))]
        if not found:
            return None
        early = [row for one in found for rows in one for row in rows]
        tails = [rows[-1] for one in found for rows in one]
        nbytes = {row.unit: (row.whole_nbytes or 0) - (row.sharded_nbytes or 0) for row in early}
        exposed, tails_ns = (self._mean(row.exposed_charged_ns or 0 for row in rows) for rows in (early, tails))
        return EarlyReductions(
            median(len(one) + 1 for one in found),
            len(nbytes),
            exposed,
            self._transfer(exposed),
            sum(nbytes.values()),
            self._transfer(tails_ns),
        )

    def _by_step(self) -> Mapping[tuple[int, int | None], list[UnitRow]]:
        found: defaultdict[tuple[int, int | None], list[UnitRow]] = defaultdict(list)
        for row in self._rows:
            found[row.rank, row.step].append(row)
        return found

    def large(self) -> LargeUnit | None:
        """Return a unit whose parts would hide each other's communication; None if no unit is far too large."""
        largest = max(self._units, key=lambda unit: unit.nbytes, default=None)
        modules = {} if largest is None else bytes_by_child(largest)
        if largest is None or len(modules) < 2 or largest.nbytes < LARGE_NBYTES:
            return None
        others = [unit.nbytes for unit in self._units if unit is not largest]
        middle = round(median(others)) if others else None
        if middle is not None and (largest.nbytes < TOO_LARGE * middle or not self._takes_too_long(largest)):
            return None
        exposed = self._mean(row.exposed_charged_ns or 0 for row in self._rows if row.unit == largest.unit)
        part = max(*modules.values(), middle or 0) / largest.nbytes
        saved = min(self._transfer(exposed * (1 - part)), self._compute_ns)
        return LargeUnit(
            unit_names(self._units)[largest.unit],
            largest.nbytes,
            len(others),
            middle,
            exposed,
            saved,
            _half(modules) if others else tuple(modules),
        )

    def _takes_too_long(self, largest: Unit) -> bool:
        """Whether its bytes matter: what is sent in no time but that of a call is not faster in parts."""
        known = [(row.unit == largest.unit, row.comm_ns) for row in self._rows if row.comm_ns is not None]
        own, others = ([ns for is_own, ns in known if is_own is wanted] for wanted in (True, False))
        return not own or not others or median(own) >= TOO_LARGE * median(others)

    def _saved(self, won: Iterable[tuple[UnitRow, int]]) -> int:
        """Return what is won of rows, without waiting for late ranks."""
        listed = list(won)
        queued = self._mean(ns for row, ns in listed if self._is_queued(row))
        return queued + self._transfer(self._mean(ns for row, ns in listed if not self._is_queued(row)))

    def _is_queued(self, row: UnitRow) -> bool:
        return (row.step, row.unit, row.role, row.phase) not in self._unqueued

    def _transfer(self, exposed_ns: float) -> int:
        """Return what of this exposed time is no waiting for late ranks, if that is the same share of all of it."""
        return round(exposed_ns * self._transfer_ratio)

    def _mean(self, values: Iterable[int]) -> int:
        return round(sum(values) / self._steps) if self._steps else 0


def _early_reductions(rows: Sequence[UnitRow]) -> list[list[UnitRow]]:
    """Return the reductions of one step by backward, without those of the last one. `rows`: in launch order.

    A backward ends where parameters are gathered for a forward: a unit that a model uses twice is reduced twice in one
    backward, and accumulates nothing."""
    backwards: list[list[UnitRow]] = [[]]
    for row in rows:
        if row.role in REDUCTIONS:
            backwards[-1].append(row)
        elif row.phase == Phase.FORWARD.name.lower() and backwards[-1]:
            backwards.append([])
    with_some = [rows for rows in backwards if rows]
    again = [{row.unit for row in rows} for rows in with_some]
    return with_some[:-1] if again and all(units == again[-1] for units in again) else []


def _transfer_ratio(rows: Sequence[DimensionRow]) -> float:
    """What of the exposed time is no waiting for late ranks, as far as that is known."""
    exposed = sum(row.exposed_charged_ns or 0 for row in rows)
    return 1 - sum(row.peer_wait_ns or 0 for row in rows) / exposed if exposed else 1.0


def _waits_in_queue(row: UnitRow) -> bool:
    """Whether other collectives ran for nearly all of the time from its launch to its begin."""
    return bool(row.queue_ns) and (row.behind_ns or 0) >= QUEUED_RATIO * (row.queue_ns or 0)


def _is_sharded(unit: Unit) -> bool:
    """Whether `fully_shard` made it: `replicate` makes units of the same class, without shards."""
    return unit.kind is UnitKind.FSDP and any(group.role is UnitRole.OTHER for group in unit.groups)


def bytes_by_child(unit: Unit) -> dict[str, int]:
    """Of the modules right inside it, the largest first. Those of a list of modules stand for themselves."""
    found: defaultdict[str, int] = defaultdict(int)
    for parameter in unit.parameters:
        found[_child(unit.module, parameter.name)] += parameter.nbytes
    return {module: found[module] for module in sorted(found, key=lambda module: -found[module])}


def _child(module: str, parameter: str) -> str:
    """As in "layers.0.mlp", of module "layers.0" and parameter "layers.0.mlp.up.weight"."""
    path = parameter.split(".")[:-1]
    depth = 1 + (len(module.split(".")) if parameter.startswith(f"{module}.") else 0)
    while depth < len(path) and path[depth].isdecimal():
        depth += 1
    return ".".join(path[:depth])


def _half(modules: Mapping[str, int]) -> tuple[str, ...]:
    """Choose the largest modules that have half of the bytes together."""
    sums = list(accumulate(modules.values()))
    return tuple(list(modules)[: 1 + bisect_left(sums, sums[-1] / 2)])


def _by_cost(rows: Sequence[UnitRow]) -> tuple[str, ...]:
    costs: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        costs[row.name] += row.exposed_charged_ns or 0
    return tuple(sorted(costs, key=lambda name: -costs[name]))
