"""What a reducer reports to observers. It knows nothing of what they do with it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch.nn import Parameter

from ddptrace.errors import printable


@dataclass(frozen=True, slots=True)
class ReducerMade:
    """A reducer. A parameter's index is its place in `names` and `parameters`, for the reducer's whole life."""

    module: str  # class name of the module inside
    group: str  # name of the (first) process group
    ranks: int
    names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    caps_nbytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayoutMade:
    """The buckets from now on. Layout 0 is the guess; each rebuild makes the next one."""

    layout: int
    buckets: tuple[tuple[int, ...], ...]  # parameter indices, in the order in which buckets are sent


class BucketObserver(Protocol):
    """Called on the thread at work, between two instructions of the training: return soon, change nothing.

    An observer that raises is not called again; training goes on.
    """

    def reducer_made(self, made: ReducerMade) -> None:
        """Called first; for an observer that comes later, when it comes, followed by the current layout."""

    def layout_made(self, made: LayoutMade) -> None: ...

    def backward_begins(self, backward: int) -> None:
        """The first gradient of a synchronised backward is ready; `backward` counts such backwards from 0."""

    def gradient_ready(self, parameter: int) -> None:
        """A gradient is accumulated; called in `no_sync()` too, where nothing is sent."""

    def bucket_launching(self, bucket: int, nbytes: int) -> None:
        """The next collective that this thread issues is the bucket's (or what a hook makes of it)."""

    def hook_begins(self, bucket: int, hook: str) -> None:
        """A communication hook of this name is asked to reduce the bucket."""

    def hook_ends(self, bucket: int) -> None: ...

    def bucket_launched(self, bucket: int, sent: object) -> None:
        """`sent`: the Work of the all-reduce, or the Future that the hook returned."""

    def wait_begins(self, bucket: int) -> None:
        """The host begins to wait for the bucket."""

    def bucket_done(self, bucket: int) -> None:
        """The wait is over. On a GPU only the stream waits: that the bucket is done is then not known yet."""

    def backward_ends(self, backward: int) -> None:
        """All gradients are reduced and in place."""


class Guarded:
    """An observer that cannot break training: its first exception becomes a warning, and it is not called again."""

    __slots__ = ("_observer",)

    def __init__(self, observer: BucketObserver) -> None:
        self._observer: BucketObserver | None = observer

    def tell(self, what: str, *args: object) -> None:
        """Call the observer's method of this name."""
        if self._observer is None:
            return
        try:
            getattr(self._observer, what)(*args)
        except Exception as error:
            self._observer = None
            warnings.warn(
                f"The bucket observer failed in {what} and is not called again; training goes on: "
                + printable(f"{type(error).__name__}: {error}"),
                RuntimeWarning,
                stacklevel=2,
            )


class Voice:
    """Reports of the parts of a reducer to all observers. `tell` is None while there is none: then nothing is
    called."""

    __slots__ = ("_seats", "tell")

    def __init__(self) -> None:
        self._seats: dict[str, Guarded] = {}
        self.tell: Callable[..., None] | None = None

    def listen(self, observer: BucketObserver, seat: str) -> Guarded:
        """Report to this observer from now on, in place of the observer that had its seat."""
        seated = Guarded(observer)
        self._seat(self._seats | {seat: seated})
        return seated

    def leave(self, seat: str) -> None:
        self._seat({name: seated for name, seated in self._seats.items() if name != seat})

    def _seat(self, seats: dict[str, Guarded]) -> None:
        self._seats = seats
        tells = [seated.tell for seated in seats.values()]
        self.tell = _to_each(tells) if len(tells) > 1 else next(iter(tells), None)


def _to_each(tells: list[Callable[..., None]]) -> Callable[..., None]:
    def tell(what: str, *args: object) -> None:
        for each in tells:
            each(what, *args)

    return tell
