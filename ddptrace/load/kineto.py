"""One Kineto file (torch.profiler's own format) as columns. Nothing here knows what an event means to us.

Kineto writes microseconds as decimal text, some relative to `baseTimeNanoseconds`, some since the epoch. A float64
cannot hold the latter, so the digits themselves are turned into integer nanoseconds.
"""

from __future__ import annotations

import enum
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddptrace.errors import RunDirectoryError

Ints = NDArray[np.int64]
Number = int | float | str | None  # files from the wild write ids as any of these

NO_CORRELATION: Final = -1
LONGEST_NUMBER: Final = 64
FAR_NS: Final = 2**62  # beyond any clock, and two of them still fit an int64


class Category(enum.IntEnum):
    """What kind of event; those that no analysis asks for are not kept."""

    OP = 0
    ANNOTATION = 1
    RUNTIME = 2
    KERNEL = 3
    MEMORY = 4  # device copies and fills


CATEGORIES: Final = {
    "cpu_op": Category.OP, "operator": Category.OP, "user_annotation": Category.ANNOTATION,
    "cuda_runtime": Category.RUNTIME, "cuda_driver": Category.RUNTIME, "runtime": Category.RUNTIME,
    "kernel": Category.KERNEL, "gpu_memcpy": Category.MEMORY, "gpu_memset": Category.MEMORY,
    "memcpy": Category.MEMORY, "memset": Category.MEMORY,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lane:
    """Where events ran: a thread (tid is the system's thread id) or a device's stream. `name` is as the file says."""

    pid: str
    tid: str
    name: str


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
    distributed: dict[str, Any]  # the file's distributedInfo, empty where it has none

    @property
    def on_device(self) -> bool:
        """Some of the work ran on a device."""
        return bool((self.category >= Category.KERNEL).any())


def read_kineto(path: Path) -> KinetoEvents:
    """Read a `.json` or `.json.gz` file. Raises RunDirectoryError where it is empty, cut short, or no Kineto trace."""
    try:
        return _columns(_decode(_inflated(path)))
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read ({error.strerror or error}); is it a whole file?") from error
    except (EOFError, zlib.error, msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        message = f"{path} is not a whole Kineto trace ({error}); record it again or leave it out"
        raise RunDirectoryError(message) from error


def nanoseconds(digits: bytes) -> int:
    """A JSON number of microseconds as whole nanoseconds, exactly; finer digits are rounded half to even.

    Raises ValueError where it is no number, or one beyond any clock.
    """
    whole, _, decimals = digits.partition(b".")
    try:
        if len(decimals) == 3:
            return int(whole + decimals)
        if not decimals:
            return int(whole) * 1000
    except ValueError:
        pass  # an exponent
    return _any_nanoseconds(digits)


def _any_nanoseconds(digits: bytes) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a time of {len(digits)} characters")
    try:
        value = Decimal(digits.decode())
    except ArithmeticError as error:
        raise ValueError(f"a time that is no number: {digits!r}") from error
    if not value.is_finite() or value.adjusted() > 18:
        raise ValueError(f"a time beyond any clock: {digits!r}")
    return 0 if value.adjusted() < -18 else round(Fraction(value) * 1000)


class _Args(msgspec.Struct, gc=False):
    correlation: Number = None
    collective: Number = msgspec.field(default=None, name="Collective name")
    name: Number = None  # of the thread, in metadata


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: Number = ""
    pid: Number = 0
    tid: Number = 0
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: _Args | None = None


class _File(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(default=0, name="baseTimeNanoseconds")
    distributed: dict[str, Any] | None = msgspec.field(default=None, name="distributedInfo")


def _inflated(path: Path) -> bytes:
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    if not content.strip():
        raise ValueError("it is empty")
    return content


def _decode(content: bytes) -> _File:
    """The whole file; a name that is not UTF-8 keeps what can be read of it."""
    try:
        content.decode()
    except UnicodeDecodeError:
        content = content.decode(errors="replace").encode()
    file = msgspec.json.decode(content, type=_File | list[_Event])
    return _File(file) if isinstance(file, list) else file


class _Ids(dict[Any, int]):
    """Numbers things in the order in which they are first seen."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


def _columns(file: _File) -> KinetoEvents:
    names, lanes = _Ids(), _Ids()
    named = (event for event in file.events if event.name == "thread_name")
    threads = {(str(event.pid), str(event.tid)): str(event.args.name) for event in named if event.args}
    rows = np.array(list(_rows(file, names, lanes)), np.int64).reshape(-1, 7)
    if len(rows) and max(int(rows[:, 3:5].max()), -int(rows[:, 3:5].min())) > FAR_NS:
        raise ValueError("times beyond any clock")
    category, name, lane, begin, end, correlation, is_collective = rows[np.argsort(rows[:, 3], kind="stable")].T
    return KinetoEvents(
        category.astype(np.uint8), name.copy(), lane.copy(), begin.copy(), end.copy(), correlation.copy(),
        is_collective.astype(np.bool_), tuple(names),
        tuple(Lane(pid, tid, threads.get((pid, tid), "")) for pid, tid in lanes), file.distributed or {},
    )  # fmt: skip


def _rows(file: _File, names: _Ids, lanes: _Ids) -> Iterator[tuple[int, ...]]:
    base = file.base_ns
    for event in file.events:
        if event.ph != "X" or event.cat is None:
            continue
        category = CATEGORIES.get(event.cat.lower())
        duration = bytes(event.dur)
        if category is None or not duration:
            continue
        begin = base + nanoseconds(bytes(event.ts))
        length = max(nanoseconds(duration), 0)
        args = event.args
        correlation = _identity(args.correlation) if args is not None else NO_CORRELATION
        is_collective = args is not None and args.collective is not None
        lane = lanes[str(event.pid), str(event.tid)]
        yield category, names[str(event.name)], lane, begin, begin + length, correlation, is_collective


def _identity(value: Number) -> int:
    """A correlation id; one that fits no int64 links nothing."""
    try:
        number = int(value, 0) if isinstance(value, str) else int(value) if value is not None else NO_CORRELATION
    except (ValueError, OverflowError):
        return NO_CORRELATION
    return number if 0 < number < FAR_NS else NO_CORRELATION
