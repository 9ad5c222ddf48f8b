"""The content of a plain or packed file, piece by piece, with limits that real traces stay far within."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO, Final

from isal import igzip_lib

from ddptrace.record.directory import open_regular

PIECE_NBYTES: Final = 2 << 20
PACKED_NBYTES: Final = 128 << 10  # read at a time; traces pack 10 to 40 times
GZIP: Final = b"\x1f\x8b"
# A gzip stream can unfold a thousandfold, which only repetition does: what a profiler writes stays below fifty.
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
        """Raises OSError where the file cannot be read, NotATrace where its packing is damaged."""
        with open_regular(self.path) as file:
            if file.peek(2)[:2] == GZIP:
                yield from self._inflated(file)
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

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        given, member = 0, igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        packed = b""
        while True:
            if member.eof:
                packed = _next_member(member.unused_data, file)
                if not packed:
                    return
                member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
            elif member.needs_input:
                packed = file.read(PACKED_NBYTES)
                if not packed:
                    self.cut = True
                    return
            piece, packed = _inflate(member, packed), b""
            given += len(piece)
            if given > max(UNJUDGED_NBYTES, UNFOLDS_AT_MOST * file.tell()):
                raise NotATrace(f"it unpacks to more than {UNFOLDS_AT_MOST} times its size, as no trace does")
            if piece:
                yield piece


def _inflate(member: igzip_lib.IgzipDecompressor, packed: bytes) -> bytes:
    try:
        return member.decompress(packed, PIECE_NBYTES)
    except IsalError as error:
        raise NotATrace(f"its gzip stream is damaged: {error}") from error


def _next_member(left: bytes, file: BinaryIO) -> bytes:
    """What follows a gzip member: the begin of another one, or nothing. Zeros may fill up a file."""
    left = left.lstrip(b"\0")
    while not left:
        more = file.read(PACKED_NBYTES)
        if not more:
            return b""
        left = more.lstrip(b"\0")
    if not GZIP.startswith(left[:2]):
        raise NotATrace("data that is not packed follows its gzip stream")
    return left
