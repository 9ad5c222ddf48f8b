"""How much of a training is kept, so that a trace can be left on for good: its disk and its memory are bounded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from ddptrace.errors import DdptraceError

LEAST_NBYTES: Final = 4_000_000
"""Less would not hold a whole step of a large model."""

ORDINARY_NBYTES: Final = 64 << 20
"""A million records a rank, which take about half a minute of one core and a gigabyte to analyze."""

FIRST_STEPS: Final = 3
"""Always recorded: in these DDP settles its buckets."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Bound what `ddptrace.trace` keeps of each rank. The oldest records go first.

    The manifest states the bounds, and a finding states what went.

    Args:
        nbytes: Most bytes of a rank's folder, at least 4,000,000; 64 MiB by default. Profiler files take up to half of
            it; the newest of them stays whatever its size, and a file that is just being saved does not count. Names
            and descriptions take up to a seventh; a finding says what does not fit.
        steps: Number of last steps to keep, rounded up to whole record files. None: as many as `nbytes` holds.
        every: Record one step in this many, besides the first three. Of the others, record only begin and end.

    Raises:
        DdptraceError: A number is out of range.
    """

    nbytes: int = ORDINARY_NBYTES
    steps: int | None = None
    every: int = 1

    def __post_init__(self) -> None:
        _check("nbytes", self.nbytes, LEAST_NBYTES)
        _check("every", self.every, 1)
        if self.steps is not None:
            _check("steps", self.steps, 1)

    def records(self, step: int) -> bool:
        """Decide whether the step of this ordinal is recorded, the same on all ranks."""
        return step < FIRST_STEPS or step % self.every == 0

    def to_dict(self) -> dict[str, Any]:
        """Return the bounds by name, as in the manifest."""
        return asdict(self)


def _check(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DdptraceError(f"ddptrace.Keep has {name}={value!r}; give a whole number of {least} at least")
