"""Ids of traces and spans, derived: every rank of a run arrives at the same ones without asking the others."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from opentelemetry.sdk.trace.id_generator import IdGenerator

from ddptrace.telemetry.links import Key


@lru_cache(maxsize=64)  # asked for again by every link of a step
def trace_id(run_id: str, step: int | None) -> int:
    """128 bits, evenly spread as samplers expect: all ranks of a step share it, as does all outside of steps (None)."""
    return _hash(16, run_id, step)


def span_id(run_id: str, step: int | None, rank: int, key: Key) -> int:
    """64 bits. Any rank can work out the id of another rank's span."""
    return _hash(8, run_id, step, rank, *key)


class DerivedIds(IdGenerator):
    """Gives out the ids that were put in before each span."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


def _hash(nbytes: int, *parts: str | int | None) -> int:
    """Never 0, which OpenTelemetry takes for no id."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=nbytes).digest(), "big") or 1
