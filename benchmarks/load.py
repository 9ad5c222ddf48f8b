"""What reading traces costs: our loading with the populations of all ranks, against unpacking alone and against HTA.

Each runs in a separate process, whose imports count. A round measures all of them, one after the other, so that a
machine that gets slower slows all of them.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.load_replicate import replicate
from benchmarks.processes import Cost, measured
from ddptrace.errors import DdptraceError
from ddptrace.own_module import own_module

ROUNDS: Final = 3
FEW_RANKS: Final = 8
"""With more ranks, this many are measured too: memory must not grow with the number of ranks."""

INFLATE, OURS, FEW, WARM, HTA = "inflating alone", "ddptrace", f"ddptrace, {FEW_RANKS} ranks", "ddptrace, cached", "HTA"
CPU_FLOOR: Final = 1 / 10
MEMORY_FLOOR: Final = 1 / 5
"""Largest share of HTA's cost that ours may take."""

SAME_PERCENT: Final = 0.0051  # HTA rounds to two decimals
SAME_TIME: Final = 1e-6  # it adds up in float64

Progress = Callable[[str], None]
Ratios = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`costs`: by what was measured, one for each round. `nbytes`: the unpacked text that each reads."""

    trace: str
    ranks: int
    costs: dict[str, tuple[Cost, ...]]
    nbytes: dict[str, int]

    def ratios(self, one: str, other: str, part: Callable[[Cost], float | None]) -> Ratios | None:
        """Return the lowest, median and highest of the rounds' ratios; None if one was not measured."""
        pairs = zip(self.costs.get(one, ()), self.costs.get(other, ()), strict=False)
        values = [(part(above), part(below)) for above, below in pairs]
        found = sorted(above / below for above, below in values if above is not None and below)
        return (found[0], statistics.median(found), found[-1]) if found else None

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "trace": self.trace,
            "ranks": self.ranks,
            "nbytes": self.nbytes,
            "rounds": {name: [_plain(cost) for cost in costs] for name, costs in self.costs.items()},
            "hta_to_ours_cpu": self.ratios(HTA, OURS, cpu_s),
            "hta_to_ours_peak": self.ratios(HTA, OURS, peak_nbytes),
        }


def cpu_s(cost: Cost) -> float | None:
    return cost.cpu_s


def peak_nbytes(cost: Cost) -> float | None:
    return cost.peak_nbytes


def bench_load(trace: Path, *, ranks: int, nbytes: int, with_hta: bool, progress: Progress) -> Benchmark:
    """Replicate `trace` to `ranks` ranks of about `nbytes` each, and measure.

    Raises: DdptraceError if HTA and we get different numbers, or if one of them fails.
    """
    with tempfile.TemporaryDirectory(prefix="ddptrace-bench-") as folder:
        progress(f"writing {ranks} files of about {nbytes / 1e6:.0f} MB")
        files = replicate(trace, Path(folder), ranks=ranks, nbytes=nbytes)
        cache = Path(folder, "cache")
        cache.mkdir()
        progress("filling the cache")
        raw_nbytes = _run("inflate", files)[1]["raw_nbytes"]
        few = files[:FEW_RANKS]
        _run("ours", files, cache)
        plans: dict[str, tuple[str, list[Path], Path | None]] = {
            INFLATE: ("inflate", files, None),
            OURS: ("ours", files, None),
            **({FEW: ("ours", few, None)} if ranks > FEW_RANKS else {}),
            WARM: ("ours", files, cache),
            **({HTA: ("hta", files, None)} if with_hta else {}),
        }
        costs = _rounds(plans, progress)
    nbytes_of = {name: round(raw_nbytes * len(plan[1]) / ranks) for name, plan in plans.items()}
    return Benchmark(trace.name, ranks, costs, nbytes_of)


def _rounds(plans: dict[str, tuple[str, list[Path], Path | None]], progress: Progress) -> dict[str, tuple[Cost, ...]]:
    costs: dict[str, list[Cost]] = {name: [] for name in plans}
    for number in range(ROUNDS):
        answers = {}
        for name, (what, files, cache) in plans.items():
            progress(f"round {number + 1} of {ROUNDS}: {name}")
            cost, answers[name] = _run(what, files, cache)
            costs[name].append(cost)
        check_same(answers)
    return {name: tuple(found) for name, found in costs.items()}


def _run(what: str, files: Sequence[Path], cache: Path | None = None) -> tuple[Cost, dict[str, Any]]:
    command = [*own_module("benchmarks.load_work"), what, str(cache or ""), *map(str, files)]
    cost, printed = measured(command, os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"})
    return cost, json.loads(printed)


def check_same(answers: dict[str, dict[str, Any]]) -> None:
    """Raise DdptraceError if the cache or HTA gives other numbers than our plain reading."""
    ours = answers[OURS]
    if answers[WARM] != ours:
        raise DdptraceError("the cache gives other numbers than the files; this is a defect of ddptrace")
    for population, ranks in answers.get(HTA, {}).items():
        for rank, theirs in ranks.items():
            if not _is_same(theirs, ours[population].get(rank)):
                told = f"HTA says {theirs} and ddptrace {ours[population].get(rank)} of rank {rank}"
                raise DdptraceError(f"{told} (overlap %, idle, compute and span µs): they must be equal")


def _is_same(theirs: list[float], ours: list[float] | None) -> bool:
    if ours is None:
        return math.isnan(theirs[0])
    times = zip(theirs[1:], ours[1:], strict=True)
    return abs(theirs[0] - ours[0]) <= SAME_PERCENT and all(math.isclose(a, b, rel_tol=SAME_TIME) for a, b in times)


def table(found: Benchmark) -> str:
    """Return a Markdown table: the median of the rounds, and HTA's cost over ours."""
    lines = [
        f"{found.ranks} ranks of {found.nbytes[OURS] / found.ranks / 1e6:.1f} MB (unpacked), replicated from"
        f" {found.trace}; median of {ROUNDS} rounds. Peak: all processes together, shared pages once.\n",
        "| | CPU s | wall s | peak MB | raw MB per CPU s | CPU ÷ inflating |",
        "|---|---|---|---|---|---|",
        *(_line(found, name) for name in found.costs),
    ]
    return "\n".join([*lines, *_verdicts(found)])


def _line(found: Benchmark, name: str) -> str:
    costs = found.costs[name]
    cpu, wall = (statistics.median(getattr(cost, part) for cost in costs) for part in ("cpu_s", "wall_s"))
    peak = _median_peak(costs)
    inflating = found.ratios(name, INFLATE, cpu_s)
    share = "-" if inflating is None or found.nbytes[name] != found.nbytes[INFLATE] else f"{inflating[1]:.2f}"
    size = "-" if peak is None else f"{peak / 1e6:.0f}"
    return f"| {name} | {cpu:.2f} | {wall:.2f} | {size} | {found.nbytes[name] / 1e6 / cpu:.0f} | {share} |"


def _verdicts(found: Benchmark) -> list[str]:
    verdicts = []
    for word, part, floor in (("CPU time", cpu_s, CPU_FLOOR), ("peak memory", peak_nbytes, MEMORY_FLOOR)):
        ratios = found.ratios(OURS, HTA, part)
        if ratios is not None:
            met = "met" if ratios[1] <= floor else "missed"  # by the median round; the spread stands beside it
            low, median, high = (1 / ratio for ratio in reversed(ratios))
            verdicts.append(
                f"HTA ÷ ddptrace, {word}: {median:.1f} ({low:.1f} .. {high:.1f}); floor {1 / floor:.0f}: {met}"
            )
    growth = found.ratios(OURS, FEW, peak_nbytes)
    if growth is not None:
        low, median, high = growth
        verdicts.append(f"peak memory, {found.ranks} ÷ {FEW_RANKS} ranks: {median:.2f} ({low:.2f} .. {high:.2f})")
    return ["", *verdicts] if verdicts else []


def _median_peak(costs: Sequence[Cost]) -> float | None:
    peaks = [cost.peak_nbytes for cost in costs if cost.peak_nbytes is not None]
    return statistics.median(peaks) if peaks else None


def _plain(cost: Cost) -> dict[str, float | int | None]:
    return {"cpu_s": cost.cpu_s, "wall_s": cost.wall_s, "peak_nbytes": cost.peak_nbytes}
