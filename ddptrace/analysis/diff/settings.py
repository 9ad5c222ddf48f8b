"""How a run was set up, as far as its tables tell, in words to be held against another run's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from ddptrace.analysis.diff.tables import Setting
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.units import size

COMPUTE: Final = "compute is taken from"
MOST_VALUES: Final = 3
"""Of one side: of more different values their number is told."""

MOST_SIZES: Final = 12
"""Of buckets, that are told one by one."""


def settings_of(result: Result, rows: Sequence[StepRow]) -> dict[str, str]:
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
