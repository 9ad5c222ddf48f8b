"""Limits that a change must not exceed: `step>5%`, `exposed>2ms`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.diff.tables import Change, Diff
from ddptrace.errors import DdptraceError

WRITTEN: Final = re.compile(r"\s*(?P<what>[a-z]+)\s*>\s*(?P<amount>\d+(\.\d+)?)\s*(?P<unit>%|ns|us|µs|ms|s)\s*")
UNITS_NS: Final = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
QUANTITIES: Final = {
    "step": ("step", "step"),
    "compute": ("part", "compute"), "exposed": ("part", "exposed_comm"), "memory": ("part", "exposed_memory"),
    "idle": ("part", "idle"), "comm": ("total", "comm"),
    "data": ("phase", "data"), "forward": ("phase", "forward"), "backward": ("phase", "backward"),
    "optimizer": ("phase", "optimizer"), "other": ("phase", "other"),
    "bucket": ("bucket", "exposed"), "rank": ("rank", "compute"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limit:
    """`ratio`: of the step before; or `ns`."""

    text: str
    what: str
    ns: float | None
    ratio: float | None


def parse_limit(text: str) -> Limit:
    """`QUANTITY>AMOUNT`. Raises DdptraceError with the way to write one."""
    found = WRITTEN.fullmatch(text)
    if found is None or found["what"] not in QUANTITIES:
        raise DdptraceError(
            f"{text!r} is no limit: write QUANTITY>AMOUNT, as in 'step>5%' (of the step before) or 'exposed>2ms', "
            f"where QUANTITY is one of {', '.join(QUANTITIES)}"
        )
    amount, unit = float(found["amount"]), found["unit"]
    if unit == "%":
        return Limit(text.strip(), found["what"], None, amount / 100)
    return Limit(text.strip(), found["what"], amount * UNITS_NS[unit], None)


def exceeding(diff: Diff, limit: Limit) -> list[Change]:
    """What surely got longer, and by more than the limit; of buckets and ranks each that did.

    Raises DdptraceError where nothing is sure with so few runs, or the quantity is not known on both sides: a check
    that could never fail would be worse than none.
    """
    if diff.basis in ("blocks", "none"):
        raise DdptraceError(
            f"{limit.text!r} cannot be checked with {len(diff.runs)} runs: nothing tells what runs differ by of "
            "themselves; give 4 or more in all, better 6 a side"
        )
    rows = [row for row in diff.changes if (row.kind, row.name) == QUANTITIES[limit.what]]
    if not rows:
        raise DdptraceError(f"{limit.text!r} cannot be checked: it is not known of all runs on both sides")
    least = limit.ns if limit.ns is not None else (limit.ratio or 0.0) * diff.step.before_ns
    return [row for row in rows if row.is_sure and row.change_ns > least]
