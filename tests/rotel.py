"""A real OpenTelemetry collector, `rotel`, between what sends and what receives."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import need


@dataclass(frozen=True)
class Collector:
    grpc_url: str
    http_url: str
    log: Path

    def url(self, protocol: str) -> str:
        return self.grpc_url if protocol == "grpc" else self.http_url


@contextmanager
def collector(folder: Path, to: str, protocol: str) -> Iterator[Collector]:
    """One that passes on all it gets `to` an address, over the same protocol as it is asked to take it."""
    agent, log = _agent(), folder / "rotel.log"
    ports = _free_ports(2)
    grpc, http = (f"127.0.0.1:{port}" for port in ports)
    command = [
        agent, "start", "--otlp-grpc-endpoint", grpc, "--otlp-http-endpoint", http, "--exporter", "otlp",
        "--otlp-exporter-endpoint", to, "--otlp-exporter-protocol", "grpc" if protocol == "grpc" else "http",
        "--otlp-exporter-compression", "none", "--batch-timeout", "100ms",
        "--pid-file", folder / "rotel.pid", "--log-file", folder / "rotel-agent.log",
    ]  # fmt: skip
    with log.open("wb") as said:
        process = subprocess.Popen([*map(str, command)], stdout=said, stderr=said)
        try:
            _await_ports(ports, process, log)
            yield Collector(f"http://{grpc}", f"http://{http}", log)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _agent() -> Path:
    found = importlib.util.find_spec("rotel")
    need(found is not None and found.origin, "the collector rotel (pip install rotel)")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "rotel-agent"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _await_ports(ports: list[int], process: subprocess.Popen[bytes], log: Path, patience_s: float = 30) -> None:
    until = time.monotonic() + patience_s
    for port in ports:
        while True:
            assert process.poll() is None and time.monotonic() < until, log.read_text(errors="replace")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
