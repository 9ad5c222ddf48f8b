"""`ddptrace.Keep`: limits how much a trace keeps, so that it can always be left on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from ddptrace.errors import DdptraceError

LEAST_NBYTES: Final = 4_000_000
"""Less would not hold a whole step of a large model."""

ORDINARY_NBYTES: Final = 64 << 20
"""A million records per rank. Analyzing them takes about half a minute of one core, and a gigabyte of memory."""

FIRST_STEPS: Final = 3
"""These are always recorded: DDP forms its final buckets in them."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Limit what `ddptrace.trace` keeps on disk per rank. The oldest records are deleted first.

    The manifest states the limits, and a finding states what was deleted.

    Args:
        nbytes: Maximum size of a rank's folder in bytes, at least 4,000,000; 64 MiB by default. Profiler files take up
            to half of it; the newest one stays whatever its size, and a file being saved does not count. Names and
            descriptions take up to a seventh; a finding lists what does not fit.
        steps: Number of last steps to keep, rounded up to whole record files. None: as many as `nbytes` holds.
        every: Record every n-th step, and always the first three. Of other steps, record only begin and end.

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
        """Decide whether to record the step with this ordinal; the answer is the same on all ranks."""
        return step < FIRST_STEPS or step % self.every == 0

    def to_dict(self) -> dict[str, Any]:
        """Return the limits by name, as in the manifest."""
        return asdict(self)


def _check(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DdptraceError(f"ddptrace.Keep has {name}={value!r}; give a whole number of at least {least}")
