"""How each all-reduce waited and ran, by a trace, and what the processors did at the time, by the kernel's accounts."""

from __future__ import annotations

import os
import resource
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ddptrace.bench.job import Job
from ddptrace.bench.traced import analysis
from ddptrace.engine import cores

LOADED_STEPS: Final = 5
"""Steps in a row without a barrier: the kernel's clock of busy cores ticks only every 10 ms."""
SCHEDSTAT: Final = "/proc/self/schedstat"


@dataclass(frozen=True, slots=True)
class Calls:
    """Means over the all-reduces of the profiled steps, in ns, and over rank-steps for `calls` and `span_ns`.

    launch ─ behind ─┬─ idle ─┬── exec ──┐      span: first launch to last end of one step on one rank
                 a worker   begin       end
                 was free
    """

    calls: float
    span_ns: float
    exec_ns: float
    behind_ns: float
    idle_ns: float
    evidence: str

    @property
    def at_once(self) -> float:
        """The mean number of all-reduces that executed at one time, over the span."""
        return self.calls * self.exec_ns / self.span_ns


Timed = tuple[int, int, int]
"""Launch, begin and end of one call."""


def calls_of(run: Path, threads: int) -> dict[str, Any] | None:
    """Return `Calls` of a traced run as JSON; None if it shows no execution. `threads`: workers of each group."""
    result = analysis(run)
    profiled = {(step.rank, step.step) for step in result.steps if step.profiled}
    queues: dict[tuple[int, int], dict[str, list[Timed]]] = defaultdict(lambda: defaultdict(list))
    evidence = set()
    for row in result.collectives:
        if row.part or row.step is None or (row.rank, row.step) not in profiled or row.exec_start_at_ns is None:
            continue
        queues[row.rank, row.step][row.group].append((row.launch_at_ns, row.exec_start_at_ns, row.exec_end_at_ns or 0))
        evidence.add("" if row.evidence is None else row.evidence.value)
    return None if not queues else _means(list(queues.values()), threads, "+".join(sorted(evidence)))


def _means(steps: Sequence[dict[str, list[Timed]]], threads: int, evidence: str) -> dict[str, Any]:
    spans, waits = [], []
    for groups in steps:
        calls = [call for queue in groups.values() for call in queue]
        spans.append(max(end for _, _, end in calls) - min(launch for launch, _, _ in calls))
        waits += [wait for queue in groups.values() for wait in waited(queue, threads)]
    behind, idle, ran = (statistics.fmean(part) for part in zip(*waits, strict=True))
    return {
        "calls": len(waits) / len(steps),
        "span_ns": statistics.fmean(spans),
        "exec_ns": ran,
        "behind_ns": behind,
        "idle_ns": idle,
        "evidence": evidence,
    }


def waited(queue: Sequence[Timed], threads: int) -> Iterator[tuple[int, int, int]]:
    """Yield ns behind earlier calls, ns while a worker was free and ns executing, for each call of a group on a
    rank."""
    ends: list[int] = []
    for launch, begin, end in sorted(queue):
        free = sorted(ends)[-threads] if len(ends) >= threads else launch
        ready = min(max(launch, free), max(launch, begin))
        yield ready - launch, max(0, begin - ready), end - begin
        ends.append(end)


@dataclass(frozen=True, slots=True)
class Account:
    """Counters of one process, and ticks of the whole machine. `ready_ns`: for how long the process's threads were
    ready and had no core."""

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
        """Return the difference, field by field."""
        return tuple(getattr(self, field) - getattr(then, field) for field in self.__slots__)


def load_of(job: Job, step: Callable[[], None]) -> dict[str, Any]:
    """Run the step and return the load of the host whose cores the ranks kept busiest. Collective."""
    job.meet()
    then = Account.now()
    for _ in range(LOADED_STEPS):
        step()
    job.finish()
    loads: list[Any] = job.gather((socket.gethostname(), cores(), Account.now().since(then)))
    by_host = [[each[1:] for each in loads if each[0] == host] for host in sorted({each[0] for each in loads})]
    wall_ns = max(spent[0] for _, _, spent in loads)
    return max((of_host(host, wall_ns) for host in by_host), key=lambda load: float(load["cpu_ratio"]))


def of_host(ranks: Sequence[tuple[int, tuple[int, ...]]], wall_ns: int) -> dict[str, Any]:
    """Return one host's load, from (cores, spent) of its ranks.

    `cpu_ns`: of one step, all ranks together. `cpu_ratio`: share of the host's cores that the ranks used;
    `machine_ratio`: that all programs used. `ready`: mean number of threads that were ready without a core. None if the
    system does not report it.
    """
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


def _ready_ns() -> int:
    """Sum over the threads, for each of which Linux counts it."""
    found = (_read(task) for task in Path("/proc/self/task").glob("*/schedstat"))
    return sum(int(text.split()[1]) for text in found if text)


def _ticks() -> tuple[int, int]:
    """Return busy ticks and all ticks since boot, from user, nice, system, idle, iowait, irq, softirq and steal."""
    ticks = [int(field) for field in _read(Path("/proc/stat")).partition("\n")[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4], sum(ticks)) if len(ticks) > 4 else (0, 0)


def _read(path: Path) -> str:
    """Return the file's text; empty if it does not exist: on another system, or after the thread has ended."""
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return ""
