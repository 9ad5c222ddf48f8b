"""What the processors did meanwhile, by the kernel's accounts: how busy they were, and who stood ready without one."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ddptrace.engine import cores

if TYPE_CHECKING:
    from ddptrace.bench.job import Job

LOADED_STEPS: Final = 5
"""One after the other, without a barrier between: the kernel's clock of busy cores ticks every 10 ms only."""


@dataclass(frozen=True, slots=True)
class Account:
    """Of one process, `ready_ns` the time its threads could have run and had no core; of the whole machine, ticks."""

    at_ns: int
    cpu_ns: int
    ready_ns: int
    busy_ticks: int
    all_ticks: int

    @classmethod
    def now(cls) -> Account:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_ns = round((usage.ru_utime + usage.ru_stime) * 1e9)
        return cls(time.perf_counter_ns(), cpu_ns, _ready_ns(), *_ticks())

    def since(self, then: Account) -> tuple[int, ...]:
        """What has come since, field by field."""
        return tuple(getattr(self, field) - getattr(then, field) for field in self.__slots__)


def load_of(job: Job, step: Callable[[], None]) -> dict[str, Any]:
    """Of the host whose cores the ranks kept busiest. Collective."""
    job.meet()
    then = Account.now()
    for _ in range(LOADED_STEPS):
        step()
    job.finish()
    told: list[Any] = job.gather((socket.gethostname(), cores(), Account.now().since(then)))
    by_host = [[each[1:] for each in told if each[0] == host] for host in sorted({each[0] for each in told})]
    wall_ns = max(spent[0] for _, _, spent in told)
    return max((of_host(host, wall_ns) for host in by_host), key=lambda load: float(load["cpu_ratio"]))


def of_host(ranks: Sequence[tuple[int, tuple[int, ...]]], wall_ns: int) -> dict[str, Any]:
    """From (cores, spent) of its ranks. `cpu_ns`: of one step, all ranks together. `cpu_ratio`: of all its cores, by
    the ranks; `machine_ratio`: by everybody. `ready`: how many threads stood ready without a core, on the mean. None
    where the system does not tell."""
    accounts = [Account(*spent) for _, spent in ranks]
    host_cores, longest = ranks[0][0], max(accounts, key=lambda account: account.at_ns)
    cpu_ns = sum(account.cpu_ns for account in accounts)
    return {
        "cores": host_cores,
        "cpu_ns": cpu_ns / LOADED_STEPS,
        "cpu_ratio": min(1.0, cpu_ns / (wall_ns * host_cores)),
        "machine_ratio": longest.busy_ticks / longest.all_ticks if longest.all_ticks else None,
        "ready": sum(account.ready_ns for account in accounts) / wall_ns if Path(SCHEDSTAT).exists() else None,
    }


SCHEDSTAT: Final = "/proc/self/schedstat"


def _ready_ns() -> int:
    """Linux counts it for each thread."""
    found = (_read(task) for task in Path("/proc/self/task").glob("*/schedstat"))
    return sum(int(text.split()[1]) for text in found if text)


def _ticks() -> tuple[int, int]:
    """Busy and all since boot; the file tells user, nice, system, idle, iowait, irq, softirq and steal."""
    ticks = [int(field) for field in _read(Path("/proc/stat")).partition("\n")[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4], sum(ticks)) if len(ticks) > 4 else (0, 0)


def _read(path: Path) -> str:
    """Empty where there is none: another system, or the thread has ended."""
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return ""
