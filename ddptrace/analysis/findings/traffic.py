"""Gradients that are sent more often than an update needs, or less: what a condition around `no_sync()` gets wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ddptrace.analysis.tables.traffic import GradientTrafficRow
from ddptrace.analysis.wording import mb, named
from ddptrace.load.tables import Finding

DRIFT: Final = "Where the update uses them, the ranks' models drift apart"


def traffic_findings(rows: Iterable[GradientTrafficRow]) -> list[Finding]:
    """Judged only in steps that have one update, after all of their backwards: there, one synchronised backward is what
    it takes, and it must be the last."""
    by_reducer: defaultdict[tuple[int, str], list[GradientTrafficRow]] = defaultdict(list)
    for row in rows:
        if row.one_update:
            by_reducer[row.reducer, row.name].append(row)
    several = len({reducer for reducer, _ in by_reducer}) > 1
    return [finding for mine in by_reducer.values() for finding in _of_reducer(mine, several)]


def _of_reducer(rows: Sequence[GradientTrafficRow], several: bool) -> Iterator[Finding]:
    """`several`: there are other reducers, and an update may be of theirs: gradients that stay may not be missed."""
    grave = "info" if several else "warning"
    often = [row for row in rows if row.synchronised > 1]
    never = [row for row in rows if not row.synchronised]
    early = [row for row in rows if row.synchronised and not row.last_synchronised]
    where, name = f"reducer {rows[0].reducer}", rows[0].name
    if often:
        yield Finding("synchronised-often", "warning", where, _often(name, often, len(rows)))
    if never:
        yield Finding("synchronised-never", grave, where, (
            f"{name} got gradients in {_steps(never)} and sent none of them before the update ({len(never)} of"
            f" {len(rows)} rank-steps): every backward was inside no_sync(). {DRIFT}: leave no_sync() for the last"
            " backward before each update."
        ))  # fmt: skip
    if early:
        yield Finding("synchronised-early", grave, where, (
            f"{name} sent gradients in {_steps(early)}, but not in the last backward before the update ({len(early)} of"
            f" {len(rows)} rank-steps): what that one added stayed on its rank. {DRIFT}: no_sync() belongs around all"
            " backwards but the last."
        ))  # fmt: skip


def _often(name: str, often: Sequence[GradientTrafficRow], judged: int) -> str:
    times = sorted({row.synchronised for row in often})
    counted = f"{times[0]}" if len(times) == 1 else f"{times[0]} to {times[-1]}"
    known = [row.nbytes for row in often if row.nbytes is not None]
    once = [row.nbytes // row.synchronised for row in often if row.nbytes is not None]
    bytes_ = f", {mb(max(known))} on a rank instead of {mb(max(once))}" if known else ""
    return (
        f"{name} sent its gradients {counted} times per update in {_steps(often)} ({len(often)} of {judged}"
        f" rank-steps){bytes_}. If these backwards accumulate gradients, put all but the last inside no_sync():"
        " the sum is the same."
    )


def _steps(rows: Iterable[GradientTrafficRow]) -> str:
    return named("step", sorted({row.step for row in rows}))
