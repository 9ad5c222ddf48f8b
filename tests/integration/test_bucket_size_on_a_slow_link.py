"""Two hosts joined by a link of a set rate: communication takes time there and no processor, so overlap is real."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddptrace
from tests.launch import PROGRAMS, environment

RATE = "1gbit"


@pytest.fixture
def hosts(hosts_tool: Path) -> Iterator[list[str]]:
    """The command that runs something on host i: `[*hosts, str(i), ...]`."""
    os.environ["HOSTS_PREFIX"] = f"ddt{os.getpid() % 10000}"
    subprocess.run([hosts_tool, "up", "2", RATE], check=True)
    yield [str(hosts_tool), "exec"]
    subprocess.run([hosts_tool, "down"], check=True)


def train(hosts: list[str], run: Path, cap_mb: float, port: int) -> None:
    common = {key: value for key, value in environment().items() if key != "GLOO_SOCKET_IFNAME"}
    ranks = [
        subprocess.Popen(
            [*hosts, str(rank), sys.executable, str(PROGRAMS / "hosts_ddp.py"), str(run), str(cap_mb)],
            env=common | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)},
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]


def typical(run: Path) -> tuple[float, float]:
    """Overlap ratio and exposed ms of the median profiled step."""
    steps = [step for step in ddptrace.analyze(run).steps if step.profiled]
    assert len(steps) >= 6
    ratio = statistics.median(step.hidden_ns / step.comm_ns for step in steps)
    return ratio, statistics.median(step.exposed_comm_ns for step in steps) / 1e6


def test_from_one_bucket_to_2_mb_overlap_rises_and_exposed_time_falls(hosts: list[str], tmp_path: Path) -> None:
    train(hosts, tmp_path / "one", 1000, 29811)
    train(hosts, tmp_path / "small", 2, 29812)
    one_ratio, one_exposed_ms = typical(tmp_path / "one")
    small_ratio, small_exposed_ms = typical(tmp_path / "small")
    print(f"one bucket: {one_ratio:.1%} hidden, {one_exposed_ms:.0f} ms exposed; "
          f"2 MB: {small_ratio:.1%} hidden, {small_exposed_ms:.0f} ms exposed")  # fmt: skip
    assert one_ratio < 0.1, "with one bucket nothing is left to compute"
    assert small_ratio > one_ratio + 0.1
    assert small_exposed_ms < 0.9 * one_exposed_ms
