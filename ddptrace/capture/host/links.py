"""What this process's TCP connections carried so far, between each two addresses, as Linux counts it.

Whoever has opened them (Gloo, NCCL, the program) is neither asked nor disturbed: for a moment there is a second
descriptor of the same connection, which alone is asked and closed.
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
"""So many connections are asked in one go, which takes 0.1 ms: training may want the interpreter meanwhile."""

PAUSE_S: Final = 0.0005

RESENT, ACKED, RTT_MIN, BUSY = (100, "I"), (120, "Q"), (148, "I"), (168, "Q")
"""Where struct tcp_info has them, and in how many bytes. Newer kernels only append to it: an older one tells less."""

MOST_INFO: Final = 512
UNKNOWN_RTT: Final = 2**32 - 1
US: Final = 1000  # the kernel's microseconds

LEAST_NBYTES: Final = 1 << 20
"""What carried less is not worth a word."""

MOST_PAIRS: Final = 10_000
"""Beyond this many that are closed those are forgotten: a process may have met half the internet."""

MOST_IN_SHORT: Final = 256
"""Descriptors, for a look that nobody is to wait for."""

MAPPED: Final = "::ffff:"
"""What an address of IPv4 begins with on a socket of IPv6."""


@dataclass(frozen=True, slots=True)
class Carried:
    """`busy_ns`: data was under way; `rtt_min_ns`: 0 unknown; `resent`: segments. 0 where the kernel does not tell."""

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
    """Remembers what connections had carried that are closed by now: the sums only grow."""

    def __init__(self) -> None:
        self._open: dict[int, _Connection] = {}  # by inode, which the system does not use twice
        self._closed: dict[str, Carried] = {}
        self._others: set[int] = set()  # sockets that are none of TCP
        self._looking = threading.Lock()

    def look(self) -> dict[str, Carried]:
        """By "own>peer", addresses without ports, where it is worth a word. What opens and closes a connection counts
        as a byte each. Raises OSError where the system does not list descriptors."""
        with self._looking:
            self._ask_all()
            return self._sums()

    def look_in_short(self) -> dict[str, Carried]:
        """The same where few descriptors are open and nobody else looks; else nothing."""
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
        for one in self._open.values():
            carried[one.pair] = carried.get(one.pair, Carried()).plus(one.carried)
        return {pair: one for pair, one in carried.items() if one.sent_nbytes > LEAST_NBYTES}

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
            self._closed = {pair: one for pair, one in self._closed.items() if one.sent_nbytes > LEAST_NBYTES}

    def _ask(self, descriptor: int) -> int | None:
        """The inode of what was asked: by now the number may be another's. None where it is gone."""
        try:
            own = os.dup(descriptor)
        except OSError:
            return None
        inode = _inode(own)
        if inode is None:
            os.close(own)
            return None
        known = self._open.get(inode)
        # Of a socket that does not block Python sets nothing; else it would apply the program's default timeout. Where
        # the family is told it asks for nothing either.
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
    """None where it is no socket, or closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else None


def _carried(asked: socket.SocketType) -> Carried:
    """Raises OSError where it is none of TCP."""
    return carried_of(asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, MOST_INFO))


def _pair(asked: socket.SocketType) -> str:
    """Raises OSError where it is not connected."""
    return ">".join(str(name[0]).removeprefix(MAPPED) for name in (asked.getsockname(), asked.getpeername()))


def carried_of(info: bytes) -> Carried:
    """Of a `struct tcp_info`, as long as the kernel has it."""
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
