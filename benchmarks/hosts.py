"""Several hosts on one machine: network namespaces on one bridge, each with its own rate. Needs Linux and root.

host 0  eth0 ══════╗
host 1  eth0 ══════╬══ bridge
host 2  eth0 ══════╝
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ddptrace.errors import DdptraceError

DEVICE: Final = "eth0"
NAME: Final = re.compile(r"^ddptrace(\d+)-(\d+|bridge)$")
FULL, SLOW = "1gbit", "200mbit"

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
NAMESPACES: Final = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class Network:
    """`namespaces`: by host. `shaper`: accepts commands of `tc` for the host that may be slowed."""

    namespaces: tuple[str, ...]
    shaper: IO[str]

    def slow(self, *, is_slow: bool) -> None:
        """Set the rate of the host that may be slowed."""
        self.shaper.write(_rate(SLOW if is_slow else FULL) + "\n")
        self.shaper.flush()


def refusal() -> str:
    """Return why this machine cannot make hosts; empty if it can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} is not installed"
    if os.geteuid():
        return "network namespaces need root"
    try:
        with network(2, 0):
            return ""
    except DdptraceError as error:
        return str(error)


@contextmanager
def network(hosts: int, slowed: int, rate: str = FULL) -> Iterator[Network]:
    """Make `hosts` hosts that send at `rate`, and remove them at the end. `slowed`: the host that may be slowed.

    Raises: DdptraceError if the system refuses one.
    """
    prefix = f"ddptrace{os.getpid()}"
    bridge, names = f"{prefix}-bridge", tuple(f"{prefix}-{host}" for host in range(hosts))
    _sweep()
    with ExitStack() as made:
        for name in (bridge, *names):
            made.callback(_remove, name)
            _do("ip", "netns", "add", name)
        _do("ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
        _do("ip", "-n", bridge, "link", "set", "br0", "up")
        for host, name in enumerate(names):
            _join(bridge, host, name, rate)
        yield Network(names, made.enter_context(_shaper(names[slowed])))


def enter(namespace: str) -> None:
    """Move this process to this host, under its name."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (NAMESPACES / namespace).open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) or libc.unshare(CLONE_NEWUTS):
            raise DdptraceError(f"network namespace {namespace}: {os.strerror(ctypes.get_errno())}")
    socket.sethostname(namespace)


def _join(bridge: str, host: int, name: str, rate: str) -> None:
    _do("ip", "link", "add", DEVICE, "netns", name, "type", "veth", "peer", "name", f"port{host}", "netns", bridge)
    _do("ip", "-n", name, "addr", "add", f"10.77.0.{host + 1}/24", "dev", DEVICE)
    _do("ip", "-n", name, "link", "set", "lo", "up")
    _do("ip", "-n", name, "link", "set", DEVICE, "up")
    _do("ip", "-n", bridge, "link", "set", f"port{host}", "master", "br0", "up")
    _do("ip", "netns", "exec", name, "tc", *_rate(rate).split())


@contextmanager
def _shaper(name: str) -> Iterator[IO[str]]:
    """Start `tc` once, so that a new rate does not cost its rank the start of a process."""
    command = ("ip", "netns", "exec", name, "tc", "-batch", "-")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdin is not None
            yield process.stdin
            process.stdin.close()
            if process.wait():
                raise DdptraceError("the rate of a link could not be changed: tc failed")
        finally:
            process.kill()


def _rate(rate: str) -> str:
    return f"qdisc replace dev {DEVICE} root tbf rate {rate} burst 256kb latency 200ms"


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DdptraceError(f"`{' '.join(command)}` failed: {said}")


def _remove(name: str) -> None:
    """Remove a namespace and its links, if it exists."""
    subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False)


def _sweep() -> None:
    """Remove what killed processes have left behind."""
    for name in _made():
        found = NAME.match(name)
        if found and not Path("/proc", found[1]).exists():
            _remove(name)


def _made() -> list[str]:
    return [path.name for path in NAMESPACES.iterdir()] if NAMESPACES.is_dir() else []
