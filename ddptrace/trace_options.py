"""What a program may ask of a trace: how much it keeps, what the run is called, and when slow steps open a profiler
window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from ddptrace.errors import DdptraceError, TraceStateError

LEAST_NBYTES: Final = 4_000_000
"""Less would not hold a whole step of a large model."""

ORDINARY_NBYTES: Final = 64 << 20
"""A million records per rank. Analyzing them takes about half a minute of one core, and a gigabyte of memory."""

FIRST_STEPS: Final = 3
"""These are always recorded: DDP forms its final buckets in them."""

TEXT_MAX: Final = 10_000
"""Characters of a text that are kept: the manifest is read often."""
TAGS_MAX: Final = 100

LEAST_FACTOR: Final = 1.05
"""Steps of a steady run differ by more than a smaller factor now and then."""

MOST_STEPS: Final = 100
"""Of a profiler window: more would fill memory and disks, and be a typing error."""


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
        _check_kept("nbytes", self.nbytes, LEAST_NBYTES)
        _check_kept("every", self.every, 1)
        if self.steps is not None:
            _check_kept("steps", self.steps, 1)

    def records(self, step: int) -> bool:
        """Decide whether to record the step with this ordinal; the answer is the same on all ranks."""
        return step < FIRST_STEPS or step % self.every == 0

    def to_dict(self) -> dict[str, Any]:
        """Return the limits by name, as in the manifest."""
        return asdict(self)


def _check_kept(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DdptraceError(f"ddptrace.Keep has {name}={value!r}; give a whole number of at least {least}")


@dataclass(frozen=True, slots=True)
class Labels:
    """A run's name, tags and notes; empty where a person gave none."""

    name: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return those that were given, as in the manifest."""
        given = {"name": self.name, "tags": list(self.tags), "notes": self.notes}
        return {key: value for key, value in given.items() if value}


UNLABELLED: Final = Labels()


def labels_of(name: object, tags: object, notes: object) -> Labels:
    """Check what a caller gave. Raises TraceStateError if a name or a note is no text, or a tag is none."""
    for word, given in (("name", name), ("notes", notes)):
        if not isinstance(given, str | None):
            raise TraceStateError(f"{word}={given!r} is not a text; give a string")
    if isinstance(tags, str) or not isinstance(tags, Iterable | None):
        raise TraceStateError(f'tags={tags!r} are not a list of texts; give a list, such as ["baseline", "lr 0.1"]')
    listed = list(tags or ())
    for tag in listed:
        if not isinstance(tag, str):
            raise TraceStateError(f"tags has {tag!r}, which is not a text; give a list of strings")
    return Labels(_shortened(name), tuple(map(_shortened, listed[:TAGS_MAX])), _shortened(notes))


def _shortened(given: object) -> str:
    return "" if given is None else str(given)[:TEXT_MAX].encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class when_slow:
    """Ask `ddptrace.trace(profile=...)` for profiler windows only when steps have become slower than they usually are.

    Each rank compares its steps with the median of up to 200 steps before them, from the 30th step on. Three steps in a
    row that are longer by `factor` make a slowdown; in a run whose steps often differ as much, it takes as many in a
    row as do not come by chance. All ranks then profile the same steps, shortly after: one step of warm-up, and
    `active` steps that are recorded. What is usual is learned anew after each window, so one slowdown opens one window.

    Args:
        factor: How many times as long as usual steps must be, at least 1.05.
        ranks: Ranks that record windows: "all", or their numbers, such as (0, 1).
        at_most: Maximum number of windows, at least 1.
        active: Steps of a window, from 1 to 100.

    Raises:
        TraceStateError: An argument does not fit.
    """

    factor: float = 1.3
    ranks: Literal["all"] | Sequence[int] = "all"
    at_most: int = 3
    active: int = 3

    def __post_init__(self) -> None:
        if not _is_number(self.factor, int, float) or not LEAST_FACTOR <= self.factor < float("inf"):
            raise TraceStateError(f"ddptrace.when_slow has factor={self.factor!r}; give a number of at least 1.05")
        for name in ("at_most", "active"):
            value = getattr(self, name)
            if not _is_number(value, int) or value < 1:
                raise TraceStateError(f"ddptrace.when_slow has {name}={value!r}; give a whole number of at least 1")
        if self.active > MOST_STEPS:
            raise TraceStateError(f"ddptrace.when_slow has active={self.active}; give at most {MOST_STEPS} steps")
        if self.ranks != "all" and not _are_ranks(self.ranks):
            raise TraceStateError(f'ddptrace.when_slow has ranks={self.ranks!r}; give "all", or ranks such as (0, 1)')

    def includes(self, rank: int) -> bool:
        """Decide whether this rank records windows."""
        return self.ranks == "all" or rank in self.ranks


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _are_ranks(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(_is_number(rank, int) and rank >= 0 for rank in value)
    )
