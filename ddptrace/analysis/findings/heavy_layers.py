"""A module so much larger than the others that it makes the communication what it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.buckets.reducers import Heaviest, ReducerFacts, module_of
from ddptrace.analysis.summary import Summary
from ddptrace.analysis.wording import amount, ms, named, percent
from ddptrace.load.tables import Finding

HEAVY_MIN_RATIO: Final = 0.5
"""Of all gradients of its reducer."""

FEWEST_MODULES: Final = 3
"""Of two, one always has half."""

COSTLY_MIN_RATIO: Final = 0.02
"""Of the step, that its buckets must expose."""


def heavy_layer_findings(summary: Summary, reducers: Sequence[ReducerFacts]) -> Iterator[Finding]:
    """Of each reducer once: every rank has the same."""
    for reducer in {reducer.reducer: reducer for reducer in reducers}.values():
        heavy = reducer.heaviest
        if heavy is None or reducer.modules < FEWEST_MODULES or heavy.nbytes < HEAVY_MIN_RATIO * reducer.nbytes:
            continue
        mine = [one for one in summary.buckets if one.reducer == reducer.reducer]
        carriers = [one for one in mine if heavy.module in map(module_of, one.parameters)]
        exposed = sum(one.exposed_charged_ns or 0 for one in carriers)
        if summary.window_ns and exposed >= COSTLY_MIN_RATIO * summary.window_ns:
            ran = sum(one.comm_ns or 0 for one in carriers), sum(one.comm_ns or 0 for one in mine)
            where = named("bucket", sorted({one.index for one in carriers}))
            cost = f"{ms(exposed)} of that are exposed, {percent(exposed / summary.window_ns)} of the step"
            yield _heavy(
                reducer, heavy, f"{where}, {ms(ran[0])} of the {ms(ran[1])} that all buckets take in a step; {cost}"
            )


def _heavy(reducer: ReducerFacts, heavy: Heaviest, told: str) -> Finding:
    more = f" and {heavy.parameters - 1} more" if heavy.parameters > 1 else ""
    return Finding("heavy-layer", "warning", f"reducer {reducer.reducer}", (
        f"Layer {heavy.module or heavy.largest} ({heavy.largest}{more}) has {amount(heavy.nbytes)} of the"
        f" {amount(reducer.nbytes)} of gradients, {percent(heavy.nbytes / reducer.nbytes)}. It goes with {told}. No"
        " bucket size divides a parameter: send fewer bytes of it (a sparse gradient where few of its rows are used, a"
        " compressing hook) or freeze it."
    ))  # fmt: skip
