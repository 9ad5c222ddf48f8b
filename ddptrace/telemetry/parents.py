"""The user's own span that steps hang under: as text in `meta.json`, for whoever makes spans of the run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
"""W3C Trace Context, as ddptrace itself writes it: version, trace id, span id, flags."""


@dataclass(frozen=True, slots=True)
class Parent:
    """A span of somebody else, by its ids. `flags`: 1 is set where it is sampled."""

    trace_id: int  # 128 bits, never 0
    span_id: int  # 64 bits, never 0
    flags: int


def parent_of(meta: Mapping[str, Any]) -> Parent | None:
    """The span that was active where a rank entered its trace; None where none was, or its text is not understood."""
    text = meta.get("traceparent")
    found = TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else Parent(*(int(part, 16) for part in found.group(1, 2, 3)))
