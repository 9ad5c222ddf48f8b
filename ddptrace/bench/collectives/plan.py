"""Sizes as people type them, and how often each is measured: small ones in batches, large ones as time allows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ddptrace.bench.timing import Repeats
from ddptrace.errors import DdptraceError

UNITS: Final = {"": 1_000_000, "b": 1, "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}
CELL_BUDGET_NS: Final = 4_000_000_000
"""For all repeats of one size. Past it they become fewer, but never fewer than `ROUNDS_MIN` rounds of one."""
ROUNDS_MIN: Final = 3
BATCH_NS: Final = 2_000_000
"""So long a batch is at least, that leaving the barrier at different times does not count."""
BATCH_MAX: Final = 20


def parse_sizes(asked: Sequence[str]) -> tuple[int, ...]:
    """Bytes of `4kB`, `1MB`, `1GB` or `16` (MB), ascending, each once. Raises DdptraceError for what is none."""
    return tuple(sorted({_nbytes(text) for text in asked}))


def _nbytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    nbytes = round(float(found[1]) * UNITS[found[2]]) if found and found[2] in UNITS else 0
    if nbytes < 1:
        raise DdptraceError(f"{text!r} is no size; give bytes as in 4kB,64kB,1MB,1GB (a bare number counts MB)")
    return nbytes


def batch(call_ns: int) -> int:
    """How many calls one after another are timed together."""
    return max(1, min(BATCH_MAX, -(-BATCH_NS // max(1, call_ns))))


def repeats_for(block_ns: int, asked: Repeats) -> Repeats:
    """As asked where a batch of `block_ns` allows; else fewer steps, then no warm-up (it was called before), then fewer
    rounds."""
    most = CELL_BUDGET_NS // max(1, block_ns)
    if asked.rounds * (asked.steps + asked.warmup) <= most:
        return asked
    warmup = asked.warmup if asked.rounds * (1 + asked.warmup) <= most else 0
    steps = max(1, min(asked.steps, most // asked.rounds - warmup))
    rounds = max(min(ROUNDS_MIN, asked.rounds), min(asked.rounds, most // (steps + warmup)))
    return Repeats(rounds, steps, warmup)
