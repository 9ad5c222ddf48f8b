"""What looking for unused parameters costs, and what the extra is made of, as far as was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddptrace.bench.cells import doubt, ratio_interval
from ddptrace.bench.statistics import Spread
from ddptrace.render.words import counted, duration, percent


@dataclass(frozen=True, slots=True)
class Case:
    """One reducer with the setting off, on, or on with a layer left out. `ratio`: of step times, to off. `truth`, and
    `facts` as in `Facts`: of a traced run. `walk_ns`: of the host through the graph; None where it is off."""

    reducer: str
    name: str
    time: Spread
    ratio: Spread
    truth: Mapping[str, Any]
    facts: Mapping[str, Any]
    walk_ns: int | None

    @property
    def interval(self) -> str:
        return ratio_interval(self.ratio)


def words(cases: Sequence[Case], ranks: int, layers: int) -> list[str]:
    """`cases`: off, on and left out of each reducer in turn."""
    told = []
    for off, on, left_out in zip(cases[::3], cases[1::3], cases[2::3], strict=True):
        told.append(
            f"{on.reducer} with {counted(ranks, 'rank')}: find_unused_parameters makes a step {on.ratio.median:.3f} "
            f"times as long ({on.interval}{_doubt(on.ratio)}) where all parameters are used, and "
            f"{left_out.ratio.median:.3f} times ({left_out.interval}{_doubt(left_out.ratio)}) where each rank "
            f"leaves out one of {layers} layers at random, which also spares that layer's computation."
        )
        told.append(_made_of(off, on, left_out))
    return told


def _doubt(ratio: Spread) -> str:
    found = doubt(ratio)
    return f", {found}" if found else ""


def _made_of(off: Case, on: Case, left_out: Case) -> str:
    walk = on.walk_ns or 0
    share = percent(max(0, walk) / off.time.median)
    return (
        f"{on.reducer} adds the host's walk through the graph, {duration(walk)}, {share} of a step; "
        f"{_bitmap(on, left_out)}; {_buckets(off, on)}."
    )


def _bitmap(on: Case, left_out: Case) -> str:
    used, unused = on.facts["bitmap_ns"], left_out.facts["bitmap_ns"]
    if used is None or unused is None:
        return "the bitmap's all-reduce was not seen in the traced steps"
    return f"the bitmap's all-reduce takes {duration(used)}, and {duration(unused)} where a layer is left out"


def _buckets(off: Case, on: Case) -> str:
    if off.facts["buckets"] == on.facts["buckets"]:
        return "buckets are never made anew, which makes no difference here: they are the same"
    hidden = (percent(case.truth["overlap_ratio"]) for case in (on, off))
    counts = (len(case.facts["buckets"]) for case in (on, off))
    return (
        "buckets are never made anew in the order of gradients: {} instead of {} in a step, and {} of communication is "
        "hidden instead of {}"
    ).format(*counts, *hidden)
