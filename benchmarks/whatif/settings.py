"""What is tried: bucket caps, updates of several backwards, the fp16 hook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.whatif.tables import Setting

LOOPBACK: Final = "loopback"
"""Instead of a rate: ranks of one host, where communication takes processor time."""
MIDDLE_CAP_MB: Final = 5.0
"""Of what is tried with other things than caps."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting, as a program is told it."""

    cap_mb: float
    backwards: int = 1
    is_fp16: bool = False

    @property
    def name(self) -> str:
        more = " fp16" if self.is_fp16 else f" no_sync {self.backwards}" if self.backwards > 1 else ""
        return f"cap {self.cap_mb:g}{more}"

    @property
    def is_plain(self) -> bool:
        """A cap and nothing else: predictions are made of such runs."""
        return self.backwards == 1 and not self.is_fp16

    @property
    def setting(self) -> Setting:
        return Setting((self.cap_mb,), hook="fp16" if self.is_fp16 else None, accumulate=self.backwards)


def tried_of(caps_mb: Sequence[float], backwards: Sequence[int], *, fp16: bool) -> tuple[Tried, ...]:
    """Caps first."""
    return tuple(_tried(caps_mb, backwards, fp16))


def _tried(caps_mb: Sequence[float], backwards: Sequence[int], fp16: bool) -> Iterator[Tried]:
    yield from (Tried(cap) for cap in caps_mb)
    yield from (Tried(MIDDLE_CAP_MB, count) for count in backwards if count > 1)
    if fp16:
        yield Tried(MIDDLE_CAP_MB, is_fp16=True)
