"""What the loopback interface counts: the witness of bytes that went over it."""

from __future__ import annotations

from pathlib import Path

HEADERS_NBYTES = 14 + 20 + 32  # of Ethernet, IPv4, and TCP with timestamps


def carried() -> int:
    """Bytes that the loopback interface has carried so far, without each packet's headers: how many packets there are,
    and how many of them acknowledge others, is up to how busy the machine is."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    nbytes, packets, *_ = map(int, line.split(":")[1].split())
    return nbytes - HEADERS_NBYTES * packets
