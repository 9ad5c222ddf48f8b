"""Collects what `compare` needs of one run: its typical step, the typical steps of blocks of it, and its settings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.diff.tables import OF_BUCKETS, BucketId, CollectiveId, Quantity, Setting, UnitId
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import PARTS, PHASES, measured_steps, steady_steps, typical_steps
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.units.digest import BESIDE
from ddptrace.units import size

BLOCK_STEPS: Final = 8
"""Of a block, at least: its middle half is then a few steps, and blocks vary by chance and not by what neighbouring
steps have in common."""

MOST_BLOCKS: Final = 20
RANK_PARTS: Final = ("compute", "exposed_comm", "idle")

Floats = NDArray[np.float64]
Pair = tuple[int, int]  # rank, step
_Sums = dict[Pair, int]
_Exposed = Mapping[CollectiveId | UnitId, _Sums]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run. `values`: ns, by quantity; `blocks`: the same of each block of its steps, whose own typical steps are
    taken, shape (blocks, quantities)."""

    path: str
    run_id: str
    began_unix_ns: int
    steps: int
    population: str
    evidence: str
    quantities: tuple[Quantity, ...]
    values: Floats
    blocks: Floats
    settings: Mapping[str, str]
    findings: frozenset[str]  # codes

    @property
    def step_ns(self) -> float:
        return float(self.values[0])


def figures_of(result: Result, path: str, said: Mapping[str, str]) -> RunFigures | None:
    """`said`: how it was set up, as far as its tables do not tell. None where it has no step with a window."""
    rows, population = _compared(result.steps)
    if not any(row.window_ns for row in rows):
        return None
    steps = {(row.rank, row.step) for row in result.steps}
    kinds: _Exposed = _by_kind(result, steps) | _by_unit(result, steps)
    buckets = _by_bucket(result, steps)
    quantities = tuple(_quantities(result, rows, buckets, kinds))
    every = (_compared(block)[0] for block in _blocks(steady_steps(result.steps)))
    blocks = [block for block in every if _is_seen(block) or not _is_seen(rows)]
    return RunFigures(
        path,
        result.run_id,
        result.zero_unix_ns,
        len(rows),
        population,
        _evidence(rows),
        quantities,
        _values(rows, quantities, buckets, kinds),
        np.array([_values(block, quantities, buckets, kinds) for block in blocks]).reshape(
            len(blocks), len(quantities)
        ),
        _settings_of(result, rows) | dict(said),
        frozenset(finding.code for finding in result.findings),
    )


def _compared(rows: Sequence[StepRow]) -> tuple[list[StepRow], str]:
    """Choose the typical steps; those in profiler windows if nothing else shows what the rank computed."""
    typical = typical_steps(rows)
    return typical if _is_seen(typical[0]) else measured_steps(rows)


def _is_seen(rows: Sequence[StepRow]) -> bool:
    """Whether what they computed is known of all of them."""
    return all(row.is_seen for row in rows)


def _evidence(rows: Sequence[StepRow]) -> str:
    """Return the evidence of most steps: a few with a weaker one do not make a run another kind of measurement."""
    counts = Counter(row.evidence.value for row in rows if row.evidence is not None)
    return max(sorted(counts), key=counts.__getitem__, default="")


def _quantities(
    result: Result, rows: Sequence[StepRow], buckets: Mapping[BucketId, _Times], kinds: _Exposed
) -> Iterator[Quantity]:
    """The step comes first."""
    is_seen = _is_seen(rows)
    yield Quantity("step", "step")
    if is_seen:
        yield from (Quantity("part", name) for name in PARTS)
        yield Quantity("total", "comm")
    if any(row.wall_ns != row.window_ns for row in rows):
        yield Quantity("total", "wall")
    yield from (Quantity("phase", name) for name in PHASES)
    typical = {(row.rank, row.step) for row in rows}
    for bucket, times in buckets.items():
        if typical & times.comm_ns.keys():
            yield Quantity("bucket", "exposed", bucket)
            yield Quantity("bucket", "comm", bucket)
    for kind in (kind for kind, ns in kinds.items() if typical & ns.keys()):
        yield (
            Quantity("unit", "exposed", unit=kind)
            if isinstance(kind, UnitId)
            else Quantity("collective", "exposed", collective=kind)
        )
    ranks = sorted({row.rank for row in rows})
    if len(ranks) > 1 and is_seen:
        yield from (Quantity("rank", name, rank=rank) for rank in ranks for name in RANK_PARTS)


@dataclass(frozen=True, slots=True)
class _Times:
    """One bucket's, by rank and step, where they are known."""

    comm_ns: dict[Pair, int]
    exposed_ns: dict[Pair, int]


def _by_bucket(result: Result, steps: set[Pair]) -> dict[BucketId, _Times]:
    """What is sent several times in a step counts with its sum; the same parameters in two layouts are one bucket."""
    rows: dict[tuple[object, ...], list[BucketRow]] = defaultdict(list)
    for row in result.buckets:
        if row.step is not None and (row.rank, row.step) in steps:
            rows[_id(row).key].append(row)
    ordered = sorted(rows.values(), key=lambda mine: (mine[-1].reducer, mine[-1].layout, mine[-1].index))
    return {_id(mine[-1]): _Times(_sums(mine, "comm_ns"), _sums(mine, "exposed_charged_ns")) for mine in ordered}


def _by_kind(result: Result, steps: set[Pair]) -> dict[CollectiveId | UnitId, _Sums]:
    """What is charged to each kind of collective, by rank and step. Together they are all exposed communication."""
    found: dict[CollectiveId, _Sums] = defaultdict(lambda: defaultdict(int))
    for row in result.collectives:
        if row.exposed_charged_ns is not None and row.step is not None and (row.rank, row.step) in steps:
            origin = row.origin if row.bucket is None else OF_BUCKETS
            found[CollectiveId(row.op.rstrip("_"), origin)][row.rank, row.step] += row.exposed_charged_ns
    return {kind: found[kind] for kind in sorted(found, key=lambda kind: (kind.op, kind.origin or ""))}


def _by_unit(result: Result, steps: set[Pair]) -> dict[CollectiveId | UnitId, _Sums]:
    """What is charged to each unit that is no bucket, by rank and step: all of a row in the step that launched it."""
    found: dict[UnitId, _Sums] = defaultdict(lambda: defaultdict(int))
    for row in result.units:
        if row.kind in BESIDE or row.exposed_charged_ns is None or row.step is None:
            continue
        if (row.rank, row.step) in steps:
            found[UnitId(row.name, row.role, row.phase)][row.rank, row.step] += row.exposed_charged_ns
    return {unit: found[unit] for unit in sorted(found, key=lambda unit: (unit.name, unit.role, unit.phase or ""))}


def _id(row: BucketRow) -> BucketId:
    return BucketId(row.reducer, row.parameters, row.layout, row.index, row.nbytes)


def _sums(rows: Sequence[BucketRow], name: str) -> dict[Pair, int]:
    found: dict[Pair, int] = defaultdict(int)
    for row in rows:
        value = getattr(row, name)
        if value is not None and row.step is not None:
            found[row.rank, row.step] += value
    return dict(found)


def _blocks(rows: Sequence[StepRow]) -> Iterator[list[StepRow]]:
    """Steps that follow each other, of all ranks."""
    steps = np.unique([row.step for row in rows])
    count = min(MOST_BLOCKS, len(steps) // BLOCK_STEPS)
    for block in np.array_split(steps, count) if count else ():
        wanted = set(block.tolist())
        yield [row for row in rows if row.step in wanted]


def _values(
    rows: Sequence[StepRow],
    quantities: Sequence[Quantity],
    buckets: Mapping[BucketId, _Times],
    kinds: _Exposed,
) -> Floats:
    """Means over these rank-steps."""
    of_rank: dict[int | None, list[StepRow]] = defaultdict(list)
    for row in rows:
        of_rank[None].append(row)
        of_rank[row.rank].append(row)
    return np.array([_mean(of_rank[quantity.rank], quantity, buckets, kinds) for quantity in quantities])


def _mean(
    rows: Sequence[StepRow],
    what: Quantity,
    buckets: Mapping[BucketId, _Times],
    kinds: _Exposed,
) -> float:
    """A rank that has none of these steps counts as nothing."""
    if not rows:
        return 0.0
    if what.bucket is not None:
        times = buckets[what.bucket]
        known = times.exposed_ns if what.name == "exposed" else times.comm_ns
        return sum(known.get((row.rank, row.step), 0) for row in rows) / len(rows)
    of = what.collective or what.unit
    if of is not None:
        return sum(kinds[of].get((row.rank, row.step), 0) for row in rows) / len(rows)
    name = "window_ns" if what.kind == "step" else f"{what.name}_ns"
    return float(sum(getattr(row, name) for row in rows)) / len(rows)


# How the run was set up -----------------------------------------------------------------------------------------------


COMPUTE: Final = "compute is taken from"
MOST_VALUES: Final = 3
"""Of one side: of more different values their number is told."""

MOST_SIZES: Final = 12
"""Of buckets, that are told one by one."""


def _settings_of(result: Result, rows: Sequence[StepRow]) -> dict[str, str]:
    """By name. What nobody recorded is left out. `rows`: the steps that are compared."""
    found = {
        "schema": result.schema,
        "world size": "" if result.world_size is None else str(result.world_size),
        "ranks with records": str(len(result.ranks)),
        "devices": _listed(row.device for row in result.ranks),
        "hosts": _listed(row.host for row in result.ranks if row.host not in ("", "?")),
        COMPUTE: _source(rows),
        "steps end by": _listed(row.ended_by for row in rows),
        "communication hook": _listed(row.hook for row in result.buckets if row.hook),
        "gradients are sent as": _listed(dtype for row in result.gradient_traffic for dtype in row.dtypes),
        **dict(_reducers(result)),
        **_traffic(result),
    }
    return {name: value for name, value in found.items() if value}


def _source(rows: Sequence[StepRow]) -> str:
    if not all(row.is_seen for row in rows):
        return "nothing"
    return "profiler windows" if rows and all(row.profiled for row in rows) else "phases"


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))


def _reducers(result: Result) -> Iterator[tuple[str, str]]:
    """The last layout of each: earlier ones are left after the first step."""
    rows: dict[int, dict[int, dict[int, BucketRow]]] = defaultdict(lambda: defaultdict(dict))
    for row in result.buckets:
        rows[row.reducer][row.layout].setdefault(row.index, row)
    for reducer, layouts in sorted(rows.items()):
        buckets = [bucket for _, bucket in sorted(layouts[max(layouts)].items())]
        yield f"buckets of reducer {reducer}", _sizes([bucket.nbytes for bucket in buckets])
        if any(bucket.parameters for bucket in buckets):
            yield f"parameters of reducer {reducer}", str(sum(len(bucket.parameters) for bucket in buckets))


def _sizes(nbytes: Sequence[int | None]) -> str:
    known = [nbyte for nbyte in nbytes if nbyte is not None]
    if not known or len(nbytes) > MOST_SIZES:
        whole = f", {_size(sum(known))} together" if known else ""
        return f"{len(nbytes)}{whole}"
    sizes = [_size(one) for one in known]
    alike = len(set(sizes)) == 1 < len(sizes)
    return f"{len(nbytes)} of {sizes[0]} each" if alike else f"{len(nbytes)} of {', '.join(sizes)}"


def _size(nbytes: int) -> str:
    """Write a size with one decimal at least: settings are compared as text, and three figures would make 104.8 MB and
    105.2 MB the same."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e8 else size(nbytes)


def _traffic(result: Result) -> dict[str, str]:
    """Of the median rank-step, without the first step, in which programs build."""
    calls: dict[tuple[int, int], int] = defaultdict(int)
    sent: dict[tuple[int, int], int] = defaultdict(int)
    for row in result.traffic:
        if row.step:
            calls[row.rank, row.step] += row.calls
            sent[row.rank, row.step] += row.nbytes_in or 0
    if not calls:
        return {}
    return {
        "collectives per step": f"{median(calls.values()):g}",
        "bytes per step": _size(round(median(sent.values()))),
    }


def differing(before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]]) -> list[Setting]:
    """Of the settings of each side's runs, those in which the sides are not the same."""
    found = []
    for name in dict.fromkeys(name for run in (*before, *after) for name in run):
        first, second = (Counter(run.get(name, "") for run in side) for side in (before, after))
        if set(first) != set(second):
            found.append(Setting(name, _told(first), _told(second)))
    return found


def _told(values: Counter[str]) -> str:
    """As in `2.13.0` or `2.13.0 (3 runs), 2.12.1 (1 run)`."""
    if len(values) > MOST_VALUES:
        return f"{len(values)} different ones"
    if len(values) == 1:
        return next(iter(values)) or "not recorded"
    return ", ".join(
        f"{value or 'not recorded'} ({count} run{'s' * (count != 1)})" for value, count in sorted(values.items())
    )
