"""Which sizes are measured and how often: small ones in batches, large ones as time allows, none that memory lacks.

A benchmark that drives its machine out of memory measures nothing and takes other programs with it.
"""

from __future__ import annotations

import re
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import torch

from ddptrace.bench.experiment import Repeats
from ddptrace.bench.job import Job
from ddptrace.errors import DdptraceError

UNITS: Final = {"": 1_000_000, "b": 1, "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}
CELL_BUDGET_NS: Final = 4_000_000_000
"""Time for all repeats of one size. Beyond it they become fewer, down to `ROUNDS_MIN` rounds of one call."""
ROUNDS_MIN: Final = 3
BATCH_NS: Final = 2_000_000
"""Shortest batch: beside it the ranks' different times of leaving the barrier do not count."""
BATCH_MAX: Final = 20
USED_MAX_RATIO: Final = 0.8
"""Share of the available memory to use. The rest is for other programs."""
Claim = tuple[str, int | None, float]
"""The memory's place, its available bytes (None: not known), and a rank's need as a multiple of the size."""


def parse_sizes(asked: Sequence[str]) -> tuple[int, ...]:
    """Return the bytes of `4kB`, `1MB`, `1GB` or `16` (MB), ascending, each once. Raises: DdptraceError for a text that
    is no size."""
    return tuple(sorted({_nbytes(text) for text in asked}))


def _nbytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    nbytes = round(float(found[1]) * UNITS[found[2]]) if found and found[2] in UNITS else 0
    if nbytes < 1:
        raise DdptraceError(f"{text!r} is not a size; give bytes as in 4kB,64kB,1MB,1GB (a bare number means MB)")
    return nbytes


def batch(call_ns: int) -> int:
    """Return how many calls in a row are timed together."""
    return max(1, min(BATCH_MAX, -(-BATCH_NS // max(1, call_ns))))


def repeats_for(block_ns: int, asked: Repeats) -> Repeats:
    """Return the repeats as asked if a batch of `block_ns` allows; else fewer steps, no warm-up, then fewer rounds.

    The warm-up is dispensable, since each size was called before.
    """
    most = CELL_BUDGET_NS // max(1, block_ns)
    if asked.rounds * (asked.steps + asked.warmup) <= most:
        return asked
    warmup = asked.warmup if asked.rounds * (1 + asked.warmup) <= most else 0
    steps = max(1, min(asked.steps, most // asked.rounds - warmup))
    rounds = max(min(ROUNDS_MIN, asked.rounds), min(asked.rounds, most // (steps + warmup)))
    return Repeats(rounds, steps, warmup)


def claims(job: Job, need_ratio: float) -> list[Claim]:
    """Return every rank's claim on memory. Collective."""
    return [cast(Claim, claim) for claim in job.gather((*_available(job.device), need_ratio))]


def shortage(nbytes: int, claims: Iterable[Claim]) -> tuple[int, int] | None:
    """Return the bytes needed and available where a size does not fit; None if it fits everywhere. Ranks of one host
    share its memory."""
    shared: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, available, ratio in claims:
        if available is not None:
            shared[place].append((available, ratio))
    for rows in shared.values():
        needed, free = round(nbytes * sum(ratio for _, ratio in rows)), min(available for available, _ in rows)
        if needed > USED_MAX_RATIO * free:
            return needed, free
    return None


def _available(device: torch.device) -> tuple[str, int | None]:
    host = socket.gethostname()
    if device.type == "cuda":
        return f"{host} {device}", int(torch.cuda.mem_get_info(device)[0])
    return host, host_available()


def host_available(proc: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that this process may still take, by the machine and its control group; None if unknown."""
    try:
        lines = dict(line.split(":", 1) for line in proc.read_text().splitlines())
        machine = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    limit = _group_available(group)
    return machine if limit is None else min(machine, limit)


def _group_available(group: Path) -> int | None:
    """Return what the control group's limit leaves. Unused cached files count as free."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return None
    return max(0, limit - used + _count(fields, "inactive_file"))


def _count(fields: Mapping[str, str], name: str) -> int:
    return int(fields.get(name, "0"))
