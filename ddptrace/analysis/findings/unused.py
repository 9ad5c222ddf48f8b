"""What find_unused_parameters costs, and whether anything was unused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.buckets.layouts import DROPS_LAYERS
from ddptrace.analysis.buckets.reducers import ReducerFacts, Sized
from ddptrace.analysis.findings.facts import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import typical_steps
from ddptrace.analysis.wording import amount, brief
from ddptrace.load.tables import Finding
from ddptrace.schema import Origin

NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class _Seen:
    """One reducer on all ranks: parameters by how many of the backwards gave them no gradient."""

    facts: ReducerFacts
    backwards: int
    without: tuple[tuple[Sized, int], ...]


def unused_findings(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    """None where nothing looks for unused parameters."""
    numbers = sorted({one.reducer for rank in ranks for one in rank.reducers if one.unused is not None})
    for seen in (_seen(number, ranks) for number in numbers):
        if seen.backwards:
            where = f"reducer {seen.facts.reducer}"
            yield Finding("find-unused-parameters", "info", where, f"{_found(seen)} {_cost(ranks, result)}")


def _seen(number: int, ranks: Sequence[RankFacts]) -> _Seen:
    mine = [one for rank in ranks for one in rank.reducers if one.reducer == number and one.unused is not None]
    known = [one.unused for one in mine if one.unused is not None]
    without: Counter[Sized] = Counter()
    for unused in known:
        without.update(dict(unused.without))
    return _Seen(mine[0], sum(unused.backwards for unused in known), tuple(without.items()))


def _found(seen: _Seen) -> str:
    """And what to do about it."""
    facts = seen.facts
    of = f"{facts.parameters} parameters of {facts.kind} of {facts.module}"
    never = [one for one, count in seen.without if count == seen.backwards]
    if not seen.without:
        return (
            f"find_unused_parameters=True finds nothing: in {seen.backwards} backwards all {of} got a gradient. Leave"
            " it out."
        )
    if len(never) == len(seen.without):
        zeros = "" if facts.kind == DROPS_LAYERS else ", sent as zeros in each step"
        told = ", ".join(name for name, _ in never[:NAMED]) + f" and {len(never) - NAMED} more" * (len(never) > NAMED)
        return (
            f"{len(never)} of {of} never got a gradient, in {seen.backwards} backwards: {told}."
            f" They have {amount(sum(nbytes for _, nbytes in never))}{zeros}. Take them out of the model or set"
            " requires_grad=False, and leave find_unused_parameters out."
        )
    return (
        f"{len(seen.without)} of {of} were without a gradient in some of {seen.backwards} backwards, so"
        " find_unused_parameters=True is needed."
    )


def _cost(ranks: Sequence[RankFacts], result: Result) -> str:
    """Means over rank-steps."""
    steps = {(row.rank, row.step) for row in typical_steps(result.steps)[0]}
    word = Origin.UNUSED_PARAMETERS.word
    rows = [row for row in result.collectives if row.origin == word and (row.rank, row.step) in steps]
    ran = [row.comm_ns for row in rows if row.comm_ns is not None]
    searched = [ns for rank in ranks for ns in rank.searched_ns]
    parts = [f"the all-reduce of its bitmap runs for {brief(sum(ran) / len(steps))}"] if ran else []
    parts += [f"following the graph takes {brief(sum(searched) / len(searched))} each time"] if searched else []
    told = f"{', '.join(parts)}; and the reducer" if parts else "the reducer"
    return f"What it costs a step: {told} keeps the buckets it guessed, not those in the order of ready gradients."
