"""The content of a plain or packed file, piece by piece, with limits that real traces stay far within."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO, Final

from isal import igzip_lib

from ddptrace.load.kineto.perfetto_packets import is_perfetto
from ddptrace.record.directory import open_regular

PIECE_NBYTES: Final = 2 << 20
PACKED_NBYTES: Final = 128 << 10  # read at a time; traces pack 10 to 40 times
GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
# A packed stream can unfold a thousandfold, which only repetition does: what a profiler writes stays below fifty.
UNFOLDS_AT_MOST: Final = 300
UNJUDGED_NBYTES: Final = 64 << 20  # up to here a stream may unfold as it likes


IsalError: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]  # its stub calls it an instance


class NotATrace(ValueError):
    """Why a file cannot be read as a trace, as the part of a sentence that stands in brackets."""


class Source:
    """One file's content, inflated where it is packed. `cut` is true once a packed stream ended before its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut = False

    def pieces(self) -> Generator[bytes, None, None]:
        """Yield the content as JSON; a Perfetto trace is translated.

        Raises OSError where the file cannot be read, NotATrace where its packing is damaged, ImportError where reading
        it needs a package that is not installed.
        """
        is_translated, unpacked = self.content()
        yield from self._translated(unpacked) if is_translated else unpacked

    def content(self) -> tuple[bool, Iterator[bytes]]:
        """Return whether the file is a Perfetto trace, and its content as it is. Raises what `pieces` does."""
        unpacked = self._unpacked()
        begin = next(unpacked, b"")
        return is_perfetto(begin), chain((begin,), unpacked)

    def _translated(self, unpacked: Iterator[bytes]) -> Iterator[bytes]:
        from ddptrace.load.kineto.perfetto import TAIL, kineto_text

        is_whole = yield from kineto_text(unpacked)
        if is_whole and not self.cut:
            yield TAIL

    def _unpacked(self) -> Iterator[bytes]:
        with open_regular(self.path) as file:
            magic = file.peek(4)[:4]
            if magic[:2] == GZIP:
                yield from self._inflated(file, _gzip())
            elif magic == ZSTD:
                yield from self._inflated(file, _zstd())
            else:
                while piece := file.read(PIECE_NBYTES):
                    yield piece

    def pieces_ahead(self) -> Generator[bytes, None, None]:
        """Yield the same, each made in another thread while the one before it is worked on: neither inflating nor
        scanning needs the interpreter's lock. Errors are those of `pieces`."""
        made, wanted = SimpleQueue[bytes | BaseException | None](), SimpleQueue[bool]()
        thread = Thread(target=self._make, args=(made, wanted), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there may be no more threads
            yield from self.pieces()
            return
        try:
            while (piece := made.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                wanted.put(True)
                yield piece
        finally:
            wanted.put(False)
            thread.join()

    def _make(self, made: SimpleQueue[bytes | BaseException | None], wanted: SimpleQueue[bool]) -> None:
        try:
            with closing(self.pieces()) as pieces:
                for piece in pieces:
                    made.put(piece)
                    if not wanted.get():
                        return
            made.put(None)
        except BaseException as error:  # which belongs to who waits for the piece
            made.put(error)

    def _inflated(self, file: BinaryIO, packing: _Packing) -> Iterator[bytes]:
        given, member = 0, packing.decompressor()
        packed = b""
        while True:
            if member.eof:
                packed = _next_member(member.unused_data, file, packing)
                if not packed:
                    return
                member = packing.decompressor()
            elif member.needs_input:
                packed = file.read(PACKED_NBYTES)
                if not packed:
                    self.cut = True
                    return
            piece, packed = _inflate(member, packed, packing), b""
            given += len(piece)
            if given > max(UNJUDGED_NBYTES, UNFOLDS_AT_MOST * file.tell()):
                raise NotATrace(f"it unpacks to more than {UNFOLDS_AT_MOST} times its size, as no trace does")
            if piece:
                yield piece


@dataclass(frozen=True, slots=True)
class _Packing:
    """How a file is packed."""

    name: str
    magic: bytes
    decompressor: Callable[[], Any]
    refused: type[Exception]


def _gzip() -> _Packing:
    return _Packing("gzip", GZIP, lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), IsalError)


def _zstd() -> _Packing:
    """Zstandard by Python's own library, or by its backport for a Python before 3.14."""
    try:
        if sys.version_info >= (3, 14):
            from compression.zstd import ZstdDecompressor, ZstdError
        else:
            from backports.zstd import ZstdDecompressor, ZstdError
    except ImportError:
        raise ImportError("is packed by Zstandard, and reading it needs pip install 'ddptrace[zstd]'") from None
    return _Packing("Zstandard", ZSTD, ZstdDecompressor, ZstdError)


def _inflate(member: Any, packed: bytes, packing: _Packing) -> bytes:
    try:
        return bytes(member.decompress(packed, PIECE_NBYTES))
    except packing.refused as error:
        raise NotATrace(f"its {packing.name} stream is damaged: {error}") from error


def _next_member(left: bytes, file: BinaryIO, packing: _Packing) -> bytes:
    """What follows a packed stream: the begin of another one, or nothing. Zeros may fill up a file."""
    left = left.lstrip(b"\0")
    while not left:
        more = file.read(PACKED_NBYTES)
        if not more:
            return b""
        left = more.lstrip(b"\0")
    if not packing.magic.startswith(left[: len(packing.magic)]):
        raise NotATrace(f"data that is not packed follows its {packing.name} stream")
    return left
