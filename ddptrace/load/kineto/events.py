"""One Kineto file (torch.profiler's own format) as columns: the contract between its reader and what understands it.

Nothing here knows what an event means to us.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.errors import DdptraceError
from ddptrace.load.kineto.flops import OperatorFlops

Ints = NDArray[np.int64]

NO_CORRELATION: Final = -1
FAR_NS: Final = 2**62  # beyond any clock, and two of them still fit an int64


class Category(enum.IntEnum):
    """What kind of event; those that no analysis asks for are not kept."""

    OP = 0
    ANNOTATION = 1
    RUNTIME = 2  # a call of the device's runtime or driver
    KERNEL = 3
    MEMORY = 4  # device copies and fills
    FRAME = 5  # a Python function or module call (`with_stack`, `with_modules`)


@dataclass(frozen=True, slots=True)
class Lane:
    """Where events ran: a thread (tid is the system's thread id) or a device's stream. `name` is as the file says."""

    pid: str
    tid: str
    name: str


@dataclass(frozen=True, slots=True)
class CollectiveArgs:
    """What an event's own arguments say of the collective that it carries out or issues; None where they do not."""

    collective: str | None = None  # as written: "allreduce", "_allgather_base", …
    group: str | None = None  # the process group's name
    group_description: str | None = None
    ranks: tuple[int, ...] | None = None  # of the group
    group_size: int | None = None
    nelems_in: int | None = None
    nelems_out: int | None = None
    dtype: str | None = None  # as written: "Float", "c10::BFloat16", …
    nbytes_in: int | None = None  # from input shapes and types, where nothing names elements
    turn: int | None = None  # k-th collective of its group, as the backend counts
    splits: tuple[int, ...] | None = None  # rows of the input for each rank; () where all get as many
    source: int | None = None  # global rank that a message comes from
    destination: int | None = None  # global rank that a message goes to
    unknown: str | None = None  # JSON of the arguments that this version of ddptrace does not know


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the file says of itself, outside its events; None where it does not."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    device_name: str | None = None
    host: str | None = None
    groups: tuple[tuple[str, str, tuple[int, ...]], ...] = ()  # name, backend, ranks of each process group (pg_config)
    damage: str | None = None  # a sentence on what of the file could not be read; its events are those that could


@dataclass(frozen=True, slots=True)
class KinetoEvents:
    """Events of one file, in order of their begin. All columns have one length."""

    category: NDArray[np.uint8]
    name: NDArray[np.int64]  # index into `names`
    lane: NDArray[np.int64]  # index into `lanes`
    begin_ns: Ints  # Unix, as read
    end_ns: Ints
    correlation: Ints  # of a device event and its launch; NO_CORRELATION where there is none
    is_collective: NDArray[np.bool_]  # a kernel whose arguments name the collective that it carries out
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    facts: FileFacts = field(default_factory=FileFacts)
    collectives: Mapping[int, CollectiveArgs] = field(default_factory=dict)  # by position of the event
    nbytes: Mapping[int, int] = field(default_factory=dict)  # that a device copy or fill moves, by its position
    flops: Mapping[int, OperatorFlops] = field(default_factory=dict)  # of operators that are counted, by position

    @property
    def on_device(self) -> bool:
        """Some of the work ran on a device."""
        return bool(((self.category == Category.KERNEL) | (self.category == Category.MEMORY)).any())

    def since(self, zero_unix_ns: int) -> KinetoEvents:
        """The same with instants that count from there. Raises DdptraceError where that is beyond any clock."""
        if abs(zero_unix_ns) >= FAR_NS:  # instants stay below that, so that all other differences fit
            raise DdptraceError(
                f"times cannot count from {zero_unix_ns} ns, which is beyond any clock; leave the file out"
            )
        return replace(self, begin_ns=self.begin_ns - zero_unix_ns, end_ns=self.end_ns - zero_unix_ns)
