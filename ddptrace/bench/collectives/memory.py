"""Which sizes fit: a benchmark that drives its machine out of memory measures nothing and takes others with it."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import torch

from ddptrace.bench.job import Job

USED_MAX_RATIO: Final = 0.8
"""Of what is available: the rest is for what else happens meanwhile."""
Claim = tuple[str, int | None, float]
"""Whose memory, the bytes available there (None: not known), and a rank's need as a multiple of the size."""


def claims(job: Job, need_ratio: float) -> list[Claim]:
    """Of every rank. Collective."""
    return [cast(Claim, claim) for claim in job.gather((*_available(job.device), need_ratio))]


def shortage(nbytes: int, claims: Iterable[Claim]) -> tuple[int, int] | None:
    """Bytes needed and available where they do not fit; None where they fit everywhere. The ranks of one host share."""
    shared: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, available, ratio in claims:
        if available is not None:
            shared[place].append((available, ratio))
    for rows in shared.values():
        needed, free = round(nbytes * sum(ratio for _, ratio in rows)), min(available for available, _ in rows)
        if needed > USED_MAX_RATIO * free:
            return needed, free
    return None


def _available(device: Any) -> tuple[str, int | None]:
    host = socket.gethostname()
    if device.type == "cuda":
        return f"{host} {device}", int(torch.cuda.mem_get_info(device)[0])
    return host, host_available()


def host_available(proc: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that this process may still take, by the machine and by its control group; None where neither tells."""
    try:
        lines = dict(line.split(":", 1) for line in proc.read_text().splitlines())
        machine = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    limit = _group_available(group)
    return machine if limit is None else min(machine, limit)


def _group_available(group: Path) -> int | None:
    """What the control group's limit leaves; cached files that nobody uses count as free."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        told = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return None
    return max(0, limit - used + _count(told, "inactive_file"))


def _count(told: Mapping[str, str], name: str) -> int:
    return int(told.get(name, "0"))
