"""Columns of a trace that was read before, in one small file beside the run: read ten times as fast as the trace.

    MAGIC | digest of the rest | gzip level 1 of msgpack: key, facts, texts, and each column in its smallest type

Begins are kept as differences, as they are sorted. Whatever is not exactly what was written is as good as absent, and a
cache that cannot be written is none: neither is ever an error.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from isal import igzip_lib
from numpy.typing import NDArray

from ddptrace.load.kineto.events import FAR_NS, Category, CollectiveArgs, FileFacts, KinetoEvents, Lane
from ddptrace.load.kineto.flops import LARGEST as LARGEST_FLOPS
from ddptrace.load.kineto.flops import OperatorFlops
from ddptrace.load.kineto.source import IsalError
from ddptrace.record.directory import open_regular, read_regular

FORMAT: Final = 5  # goes up whenever the reader comes to read anything otherwise
MAGIC: Final = b"ddptrace columns\n"
DIGEST_NBYTES: Final = 16
EDGE_NBYTES: Final = 64 << 10
MOST_NBYTES: Final = 1 << 30  # columns of the largest traces are a tenth of it
NAME_LENGTH: Final = 100
SMALL: Final = (np.uint8, np.uint16, np.uint32)
DTYPES: Final = frozenset(np.dtype(kind).str for kind in (*SMALL, np.int64))
LARGEST: Final = np.iinfo(np.int64).max
UNPACKED: Final = 64
LITTLE_NBYTES: Final = 64 << 20
"""Columns take at most this, or 64 times what the trace takes on the disk. Those that were measured took up to 1.4
times as much as a packed trace."""


class Key(msgspec.Struct, frozen=True):
    """The same file, unchanged, as the same reader reads it."""

    format: int
    nbytes: int
    modified_ns: int  # which anyone can set back
    changed_ns: int  # of the file's entry (ctime), which nobody can
    inode: int
    edges: bytes  # digest of the file's first and last 64 kB


class _Column(msgspec.Struct):
    dtype: str
    values: bytes


class _Stored(msgspec.Struct):
    key: Key
    columns: dict[str, _Column]
    first_ns: int
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    facts: FileFacts
    collectives: dict[int, CollectiveArgs]
    nbytes: dict[int, int]
    flops: tuple[OperatorFlops, ...]  # each once
    flops_of: dict[int, int]  # by position: which of them


def key_of(path: Path) -> Key:
    """Raises OSError where the file cannot be read."""
    with open_regular(path) as file:
        stat = os.fstat(file.fileno())
        digest = blake2b(file.read(EDGE_NBYTES), digest_size=DIGEST_NBYTES)
        file.seek(max(stat.st_size - EDGE_NBYTES, 0))
        digest.update(file.read(EDGE_NBYTES))
    return Key(FORMAT, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, digest.digest())


def load(cache: Path, path: Path, key: Key) -> KinetoEvents | None:
    """The columns of this file; None where they are not there, are of another state of it, or are damaged."""
    try:
        content = read_regular(_place(cache, path), MOST_NBYTES)
    except OSError:
        return None
    digest, packed = content[len(MAGIC) :][:DIGEST_NBYTES], content[len(MAGIC) + DIGEST_NBYTES :]
    if not content.startswith(MAGIC) or digest != _digest(packed):
        return None
    try:
        stored = msgspec.msgpack.decode(_unfolded(packed, key.nbytes), type=_Stored)
        events = _events(stored) if stored.key == key else None
    except (msgspec.MsgspecError, IsalError, ValueError, LookupError, TypeError, OverflowError):
        return None  # of another version of ddptrace
    return events if events is not None and _is_sound(events) else None


def _unfolded(packed: bytes, trace_nbytes: int) -> bytes:
    """Cut where more comes out than columns of such a trace can take."""
    unfolding = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
    return unfolding.decompress(packed, max(LITTLE_NBYTES, UNPACKED * trace_nbytes))


def store(cache: Path, path: Path, key: Key, events: KinetoEvents) -> None:
    """Write the columns, whole or not at all; several processes may do so at once. A cache that is a link is none."""
    if cache.is_symlink():
        return
    packed = igzip_lib.compress(msgspec.msgpack.encode(_stored(key, events)), 1, igzip_lib.COMP_GZIP)
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        _replace(_place(cache, path), MAGIC + _digest(packed) + packed)


def _replace(place: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _place(cache: Path, path: Path) -> Path:
    where = blake2b(os.fsencode(path.absolute()), digest_size=8).hexdigest()
    return cache / f"{path.name[:NAME_LENGTH]}.{where}.columns"


def _digest(packed: bytes) -> bytes:
    return blake2b(packed, digest_size=DIGEST_NBYTES).digest()


def _stored(key: Key, events: KinetoEvents) -> _Stored:
    begin = events.begin_ns
    columns: dict[str, NDArray[Any]] = {
        "category": events.category,
        "name": events.name,
        "lane": events.lane,
        "begin": np.diff(begin, prepend=begin[:1]),
        "length": events.end_ns - begin,
        "correlation": events.correlation + 1,  # NO_CORRELATION is -1
        "is_collective": events.is_collective,
    }
    first = int(begin[0]) if len(begin) else 0
    packed = {name: _packed(column) for name, column in columns.items()}
    numbers = {flops: number for number, flops in enumerate(dict.fromkeys(events.flops.values()))}
    return _Stored(
        key,
        packed,
        first,
        events.names,
        events.lanes,
        events.facts,
        dict(events.collectives),
        dict(events.nbytes),
        tuple(numbers),
        {position: numbers[flops] for position, flops in events.flops.items()},
    )


def _packed(column: NDArray[Any]) -> _Column:
    most = int(column.max()) if len(column) else 0
    small = column.astype(next((kind for kind in SMALL if most <= np.iinfo(kind).max), np.int64))
    return _Column(small.dtype.str, small.tobytes())


def _unpacked(column: _Column, below: int = LARGEST) -> NDArray[np.int64]:
    """Raises ValueError where a value is not in `range(below)`, or is no integer of a type that `_packed` chooses."""
    if column.dtype not in DTYPES:
        raise ValueError(f"{column.dtype} is not a type of columns")
    values = np.frombuffer(column.values, column.dtype).astype(np.int64)
    if not ((values >= 0) & (values < below)).all():
        raise ValueError(f"a value is not below {below}")
    return values


def _is_sound(events: KinetoEvents) -> bool:
    """Whether the columns fit each other as those of the reader do: the digest is anyone's to make. Their steps and
    lengths are not negative, so begins that stay within `FAR_NS` are in order, and no event ends before it begins."""
    count, begin = len(events.begin_ns), events.begin_ns
    columns = (events.category, events.name, events.lane, events.end_ns, events.correlation, events.is_collective)
    return (
        all(len(column) == count for column in columns)
        and bool((begin > -FAR_NS).all() and (events.end_ns < FAR_NS).all())
        and all(0 <= at < count for told in (events.collectives, events.nbytes, events.flops) for at in told)
        and all(0 <= nbytes <= LARGEST for nbytes in events.nbytes.values())
        and all(flops.flops is None or 0 <= flops.flops < LARGEST_FLOPS for flops in set(events.flops.values()))
    )


def _events(stored: _Stored) -> KinetoEvents:
    columns = stored.columns
    begin = np.cumsum(_unpacked(columns["begin"])) + stored.first_ns
    return KinetoEvents(
        _unpacked(columns["category"], len(Category)).astype(np.uint8),
        _unpacked(columns["name"], len(stored.names)),
        _unpacked(columns["lane"], len(stored.lanes)),
        begin,
        begin + _unpacked(columns["length"]),
        _unpacked(columns["correlation"]) - 1,
        _unpacked(columns["is_collective"], 2).astype(np.bool_),
        stored.names,
        stored.lanes,
        stored.facts,
        stored.collectives,
        stored.nbytes,
        {position: stored.flops[number] for position, number in stored.flops_of.items()},
    )
