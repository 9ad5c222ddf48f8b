"""What this process's TCP connections have carried so far, by pair of addresses, as Linux counts it.

The owners of the connections (Gloo, NCCL, the program) are not disturbed: each is read through a second descriptor of
the same connection, which is closed at once.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DESCRIPTORS: Final = Path("/proc/self/fd")

AT_ONCE: Final = 16
"""Connections to read before a pause, which takes 0.1 ms: training may want the interpreter meanwhile."""

PAUSE_S: Final = 0.0005

RESENT, ACKED, RTT_MIN, BUSY = (100, "I"), (120, "Q"), (148, "I"), (168, "Q")
"""Offset and type in struct tcp_info. Newer kernels only append to it, so an older one reports less."""

MOST_INFO: Final = 512
UNKNOWN_RTT: Final = 2**32 - 1
US: Final = 1000  # the kernel's microseconds

LEAST_NBYTES: Final = 1 << 20
"""Pairs that carried less are not recorded."""

MOST_PAIRS: Final = 10_000
"""Closed pairs to remember. Beyond them, those below `LEAST_NBYTES` are forgotten: a process may meet half the
internet."""

MOST_IN_SHORT: Final = 256
"""Descriptors, at most, for a look on the training thread."""

MAPPED: Final = "::ffff:"
"""What an address of IPv4 begins with on a socket of IPv6."""


@dataclass(frozen=True, slots=True)
class Carried:
    """`busy_ns`: data was under way; `rtt_min_ns`: 0 unknown; `resent`: segments. 0 if the kernel does not report
    it."""

    sent_nbytes: int = 0
    busy_ns: int = 0
    rtt_min_ns: int = 0
    resent: int = 0

    def plus(self, other: Carried) -> Carried:
        known = [rtt for rtt in (self.rtt_min_ns, other.rtt_min_ns) if rtt]
        return Carried(
            self.sent_nbytes + other.sent_nbytes,
            self.busy_ns + other.busy_ns,
            min(known, default=0),
            self.resent + other.resent,
        )


@dataclass(frozen=True, slots=True)
class _Connection:
    pair: str
    carried: Carried


class Links:
    """Remembers what closed connections had carried, so that sums only grow."""

    def __init__(self) -> None:
        self._open: dict[int, _Connection] = {}  # by inode; the system does not use one twice
        self._closed: dict[str, Carried] = {}
        self._others: set[int] = set()  # inodes of sockets that are not TCP
        self._looking = threading.Lock()

    def look(self) -> dict[str, Carried]:
        """Return what each pair of addresses ("own>peer", without ports) has carried, if it is enough to record.

        Opening and closing a connection count as a byte each. Raises OSError if the system does not list descriptors.
        """
        with self._looking:
            self._ask_all()
            return self._sums()

    def look_in_short(self) -> dict[str, Carried]:
        """Return the same if few descriptors are open and no other thread looks; else nothing."""
        few = sum(1 for _ in DESCRIPTORS.iterdir()) <= MOST_IN_SHORT
        if not few or not self._looking.acquire(blocking=False):
            return {}
        try:
            self._ask_all()
            return self._sums()
        finally:
            self._looking.release()

    def _sums(self) -> dict[str, Carried]:
        carried = dict(self._closed)
        for connection in self._open.values():
            carried[connection.pair] = carried.get(connection.pair, Carried()).plus(connection.carried)
        return {pair: link for pair, link in carried.items() if link.sent_nbytes > LEAST_NBYTES}

    def _ask_all(self) -> None:
        seen: set[int] = set()
        asked = 0
        for number in [int(entry.name) for entry in DESCRIPTORS.iterdir()]:
            inode = _inode(number)
            if inode is None or inode in seen:
                continue
            if inode not in self._others:
                inode = self._ask(number) or inode
                asked += 1
                if not asked % AT_ONCE:
                    time.sleep(PAUSE_S)
            seen.add(inode)
        self._others &= seen
        for inode in self._open.keys() - seen:
            gone = self._open.pop(inode)
            self._closed[gone.pair] = self._closed.get(gone.pair, Carried()).plus(gone.carried)
        if len(self._closed) > MOST_PAIRS:
            self._closed = {pair: link for pair, link in self._closed.items() if link.sent_nbytes > LEAST_NBYTES}

    def _ask(self, descriptor: int) -> int | None:
        """Read a connection. Return the inode that was read: the descriptor may be another's by now. None if it is
        gone."""
        try:
            own = os.dup(descriptor)
        except OSError:
            return None
        inode = _inode(own)
        if inode is None:
            os.close(own)
            return None
        known = self._open.get(inode)
        # For a non-blocking socket Python applies no default timeout of the program; given a family, it asks for none.
        family = -1 if known is None else socket.AF_INET
        asked = socket.SocketType(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.IPPROTO_TCP, own)
        try:
            if asked.family not in (socket.AF_INET, socket.AF_INET6):
                self._others.add(inode)
            else:
                pair = _pair(asked) if known is None else known.pair
                self._open[inode] = _Connection(pair, _carried(asked))
        except OSError:  # it is not connected
            pass
        finally:
            asked.close()
        return inode


def _inode(descriptor: int) -> int | None:
    """Return the inode of a socket; None if the descriptor is not a socket, or closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else None


def _carried(asked: socket.SocketType) -> Carried:
    """Raises OSError if the socket is not TCP."""
    return carried_of(asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, MOST_INFO))


def _pair(asked: socket.SocketType) -> str:
    """Raises OSError if the socket is not connected."""
    return ">".join(str(name[0]).removeprefix(MAPPED) for name in (asked.getsockname(), asked.getpeername()))


def carried_of(info: bytes) -> Carried:
    """Read a `struct tcp_info`, in the length that the kernel gives it."""
    rtt = _field(info, RTT_MIN)
    return Carried(
        _field(info, ACKED), _field(info, BUSY) * US, 0 if rtt == UNKNOWN_RTT else rtt * US, _field(info, RESENT)
    )


def _field(info: bytes, field: tuple[int, str]) -> int:
    at, kind = field
    if len(info) < at + struct.calcsize(kind):
        return 0
    found: int = struct.unpack_from(f"={kind}", info, at)[0]
    return found
