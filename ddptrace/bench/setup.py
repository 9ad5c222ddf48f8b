"""What a benchmark was measured on: without it a number says little."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from ddptrace.engine import cores


def setup_of(job: Any) -> dict[str, str]:
    """By words for a reader. Collective: hosts are asked for their names."""
    hosts = len(set(job.gather(socket.gethostname())))
    return {
        "ranks": f"{job.ranks} on {hosts} host{'s' if hosts > 1 else ''}",
        "backend": job.backend,
        "device": device_name(job.device),
        "torch": version("torch"),
    }


def merged(jobs: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Of jobs by their `setup`: what is the same in all once, what differs for each."""
    names = dict.fromkeys(name for job in jobs for name in job["setup"])
    return tuple((name, "; ".join(dict.fromkeys(job["setup"][name] for job in jobs))) for name in names)


def device_name(device: Any) -> str:
    if device.type == "cuda":
        import torch

        return str(torch.cuda.get_device_name(device))
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return f"CPU ({platform.machine()}, {cores()} cores, OMP_NUM_THREADS={threads})"
