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
    """What `ddptrace.trace` keeps of each rank. What is oldest goes first. The manifest tells these bounds,
    and a finding what went.

    `nbytes`: a rank's folder is no larger, profiler files included, which take up to half of it; only the newest of
    them stays whatever its size, and one that is just being saved is not counted. Names and descriptions take up to a
    seventh; what does not fit is told. `steps`: no more than the last so
    many steps, rounded up to whole record files; None: as many as `nbytes` holds. `every`: one step in so many is
    recorded, beside the first three, and of the others only when they began and ended.

    Raises DdptraceError where a number is out of range.
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
        """Whether the step of this ordinal is recorded; the same on all ranks."""
        return step < FIRST_STEPS or step % self.every == 0

    def to_dict(self) -> dict[str, Any]:
        """As the manifest tells it."""
        return asdict(self)


def _check(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DdptraceError(f"ddptrace.Keep has {name}={value!r}; give a whole number of {least} at least")
