"""The packets of a Perfetto trace (`.pftrace`, protobuf), one after the other, and when each of them was written."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import ClockSnapshot, TracePacket

PACKET: Final = 0x0A  # the tag before each packet: field 1, with its length
JSON_BEGINS: Final = re.compile(rb'\s*(?:\{\s*["}]|\[\s*[{\]]|\Z)')
LARGEST_NBYTES: Final = 64 << 20  # of one packet, and of what a packet holds packed
UNFOLDS_AT_MOST: Final = 300
REALTIME, BOOTTIME = 1, 6
OF_SEQUENCE: Final = range(64, 128)  # clocks that each sequence has for itself
_Clock = tuple[int, int]


def is_perfetto(begin: bytes) -> bool:
    """Whether a file that begins so is a Perfetto trace: one packet stands behind the other."""
    if begin[:1] != b"\n" or JSON_BEGINS.match(begin):
        return False
    span = _span(begin, 0)
    return span is not None and begin[span[1] : span[1] + 1] in (b"\n", b"")


class Packets:
    """Reads the packets of a trace. `is_whole` is false once the trace ended within a packet, or where none can be.

    Raises ImportError where the package `perfetto`, which knows their layout, is not installed.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        try:
            from google.protobuf.message import DecodeError
            from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket
        except ImportError:
            raise ImportError("is a Perfetto trace, and reading it needs pip install 'ddptrace[perfetto]'") from None
        self._pieces = pieces
        self._parse, self._refused = TracePacket.FromString, DecodeError
        self._read_nbytes = self._unpacked_nbytes = 0
        self.is_whole = True
        self.unreadable = 0

    def __iter__(self) -> Iterator[TracePacket]:
        for text in self._texts(self._pieces):
            self._read_nbytes += len(text)
            packet = self._parsed(text)
            if packet is None:
                continue
            if packet.HasField("compressed_packets"):
                inner = self._texts([self._inflated(packet.compressed_packets)])
                yield from (one for one in map(self._parsed, inner) if one is not None)
            else:
                yield packet

    def _texts(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        rest = b""
        for piece in pieces:
            rest, at = rest + piece, 0
            while (span := _span(rest, at)) is not None:
                yield rest[span[0] : span[1]]
                at = span[1]
            rest = rest[at:]
            if len(rest) > LARGEST_NBYTES or (rest and rest[0] != PACKET):
                break
        self.is_whole &= not rest

    def _parsed(self, text: bytes) -> TracePacket | None:
        try:
            return self._parse(text)
        except self._refused:
            self.unreadable += 1
            return None

    def _inflated(self, packed: bytes) -> bytes:
        """What a packet holds packed, as far as it can be unpacked."""
        inflating = zlib.decompressobj()
        try:
            found = inflating.decompress(packed, LARGEST_NBYTES)
        except zlib.error:
            self.unreadable += 1
            return b""
        self._unpacked_nbytes += len(found)
        if not inflating.eof or self._unpacked_nbytes > max(LARGEST_NBYTES, UNFOLDS_AT_MOST * self._read_nbytes):
            self.unreadable += 1
            return b""
        return found


def text(value: str | bytes) -> str:
    """Return a text of a packet; protobuf gives bytes where it is damaged."""
    return value if isinstance(value, str) else value.decode(errors="replace")


def _span(text: bytes, at: int) -> tuple[int, int] | None:
    """Where the packet that begins here stands; None where not all of it is there, or none begins."""
    if text[at : at + 1] != b"\n":
        return None
    nbytes = shift = 0
    for place in range(at + 1, min(at + 6, len(text))):
        nbytes |= (text[place] & 0x7F) << shift
        shift += 7
        if text[place] < 0x80:
            end = place + 1 + nbytes
            return (place + 1, end) if end <= len(text) else None
    return None


class Clocks:
    """Tells Unix time by the snapshots that a trace holds of its clocks. A trace without them counts from 1970, as far
    as anyone can tell."""

    def __init__(self) -> None:
        self._to_boot_ns: dict[_Clock, int] = {}  # what is to be added to a clock's time
        self._unit_ns: dict[_Clock, int] = {}
        self._last_ns: dict[_Clock, int] = {}  # of clocks that each packet sets forward

    def learn(self, snapshot: ClockSnapshot, sequence: int) -> None:
        """Take in what several clocks showed at the same time."""
        shown: dict[_Clock, int] = {}
        for clock in snapshot.clocks:
            key = _key(clock.clock_id, sequence)
            self._unit_ns[key] = clock.unit_multiplier_ns or 1
            shown[key] = clock.timestamp * self._unit_ns[key]
            if clock.is_incremental:
                self._last_ns[key] = shown[key]
                self._to_boot_ns.pop(key, None)
        self._to_boot_ns.setdefault(_key(BOOTTIME, 0), 0)
        known = next((key for key in shown if key in self._to_boot_ns), None)
        if known is not None:
            boot_ns = shown[known] + self._to_boot_ns[known]
            for key, at_ns in shown.items():
                self._to_boot_ns.setdefault(key, boot_ns - at_ns)

    def unix_ns(self, timestamp: int, clock: int, sequence: int) -> int:
        """Return when a packet was written. Each packet is asked for once, in its order."""
        key = _key(clock, sequence)
        at_ns = timestamp * self._unit_ns.get(key, 1)
        if key in self._last_ns:
            at_ns = self._last_ns[key] = self._last_ns[key] + at_ns
        return at_ns + self._to_boot_ns.get(key, 0) - self._to_boot_ns.get(_key(REALTIME, 0), 0)


def _key(clock: int, sequence: int) -> _Clock:
    return (sequence if clock in OF_SEQUENCE else 0, clock)
