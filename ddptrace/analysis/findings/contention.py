"""How much slower it is to compute while communication runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.wording import ms, percent
from ddptrace.load.tables import Finding

SLOWER_MIN_RATIO: Final = 0.1
COSTLY_MIN_RATIO: Final = 0.005
"""Of the profiled steps."""

ON_DEVICE: Final = (
    "kernels", "NCCL's channels take processors and memory bandwidth of the device: fewer of them (NCCL_MAX_CTAS,"
    " NCCL_MAX_NCHANNELS) leave more to compute, as long as communication stays hidden",
)  # fmt: skip
ON_HOST: Final = (
    "operators", "the backend's threads work on the same processors: leave it some (fewer of torch's threads, fewer"
    " ranks on a machine)",
)  # fmt: skip


def contention_findings(result: Result) -> Iterator[Finding]:
    """Over all that ran both alone and beside communication."""
    alone_ns = sum(row.alone_ns * row.beside for row in result.contention)
    tax_ns, steps = sum(row.tax_ns for row in result.contention), [row for row in result.steps if row.profiled]
    window_ns = sum(row.window_ns for row in steps)
    if tax_ns < max(SLOWER_MIN_RATIO * alone_ns, COSTLY_MIN_RATIO * window_ns, 1):
        return
    what, advice = ON_DEVICE if any(row.all is not None for row in result.ranks) else ON_HOST
    dearest, dearest_ns = _dearest(result)
    yield Finding("contention", "info", "run", (
        f"Computing takes longer while communication runs: {sum(row.beside for row in result.contention)} {what} that"
        f" would take {ms(alone_ns)} alone took {percent(tax_ns / alone_ns)} longer beside it, {ms(tax_ns)} in"
        f" {len(steps)} profiled rank-steps ({percent(tax_ns / window_ns)} of them); most in {dearest},"
        f" {ms(dearest_ns)}. It counts as compute, not as communication; {advice}."
    ))  # fmt: skip


def _dearest(result: Result) -> tuple[str, int]:
    """A kernel without its template's arguments, which fill lines."""
    taxes: Counter[str] = Counter()
    for row in result.contention:
        taxes[row.name] += row.tax_ns
    name, tax_ns = taxes.most_common(1)[0]
    return name.removeprefix("void ").partition("<")[0].partition("(")[0], tax_ns
