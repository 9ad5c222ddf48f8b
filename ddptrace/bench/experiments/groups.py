"""Many process groups at once: the time of one all-reduce in each, how each waited and ran, and why it grows with
their number.

Measurements tell three causes apart: cores (the kernel's accounts of busy cores), the queue of each group's worker
threads (launch to begin in a traced run), and the wire (bytes per second of all groups together).

pairs   p groups of two ranks each, no rank in two of them: i with i + half, so that pairs cross hosts
same    p groups over the same two ranks: 0 and half
"""

from __future__ import annotations

import os
import resource
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from ddptrace.bench import traced
from ddptrace.bench.experiment import Experiment, Measured, TimedOptions
from ddptrace.bench.experiments.groups_sheet import sections, setup, title
from ddptrace.bench.job import Job, setup_of
from ddptrace.bench.timing import interleaved
from ddptrace.engine import cores
from ddptrace.errors import DdptraceError

SHAPES: Final = ("pairs", "same")
MODES: Final = ("sync", "async")
INTERFACES: Final = "GLOO_SOCKET_IFNAME"
TRACED_STEPS: Final = 4
"""Each holds `calls` all-reduces in each group."""
LOADED_STEPS: Final = 5
"""Steps in a row without a barrier: the kernel's clock of busy cores ticks only every 10 ms."""
SCHEDSTAT: Final = Path("/proc/self/schedstat")

Timed = tuple[int, int, int]
"""Launch, begin and end of one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TimedOptions):
    """`groups`: numbers of groups at once. `nbytes`: of one all-reduce. `calls`: all-reduces in each group and step.
    `threads`: numbers of threads of each Gloo group, tried with the most groups. `environments`: settings such as
    "A=1 B=2", each tried in a separate job. `environment`: the setting of this job."""

    ranks: tuple[int, ...] = (16,)
    groups: tuple[int, ...] = (1, 2, 4, 8)
    nbytes: int = 4_000_000
    calls: int = 4
    threads: tuple[int, ...] = (1, 2, 4)
    environments: tuple[str, ...] = ("OMP_NUM_THREADS=2", "GLOO_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo,lo")
    environment: str = ""

    def __post_init__(self) -> None:
        wrong = [text for text in self.environments for part in text.split() if not part.partition("=")[2]]
        if wrong:
            raise DdptraceError(
                f"{wrong[0]!r} sets no environment variable: write NAME=VALUE, and separate several by spaces"
            )


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`groups` at once. `mode`: "sync" waits for each all-reduce before the next, "async" launches all and then waits.
    `threads`: worker threads of each Gloo group; None leaves the backend's own choice."""

    shape: str
    mode: str
    groups: int
    threads: int | None = None

    @property
    def name(self) -> str:
        most = "" if self.threads is None else f"-threads-{self.threads}"
        return f"{self.shape}-{self.mode}-{self.groups}{most}"

    def members(self, ranks: int) -> list[tuple[int, int]]:
        half = ranks // 2
        return [(at, at + half) if self.shape == "pairs" else (0, half) for at in range(self.groups)]


class Floor:
    """The groups of a job and their tensors, each made once. All ranks must ask for the same in the same order."""

    def __init__(self, job: Job, nbytes: int, calls: int) -> None:
        self._job, self._calls, self._elements = job, calls, nbytes // 4
        self._groups: dict[tuple[Any, ...], Any] = {}
        self._tensors: dict[tuple[int, int], torch.Tensor] = {}

    def step(self, arrangement: Arrangement) -> Callable[[], None]:
        """Return `calls` all-reduces in each group of this rank; a rank without a group does nothing. Collective."""
        groups = self._of(arrangement)
        mine = [at for at, pair in enumerate(arrangement.members(self._job.ranks)) if self._job.rank in pair]
        turns = [(groups[at], self._tensor(at, call)) for call in range(self._calls) for at in mine]
        return (lambda: _one_by_one(turns)) if arrangement.mode == "sync" else (lambda: _all_at_once(turns))

    def threads(self, arrangement: Arrangement) -> int:
        """Return the threads of each group, by its backend; 1 for a backend with a stream. Same on every rank."""
        mine = [group for group in self._of(arrangement) if group is not dist.GroupMember.NON_GROUP_MEMBER]
        threads = [_threads_of(group) for group in mine]
        return max(int(str(each)) for each in self._job.gather(max(threads, default=1)))

    def _of(self, arrangement: Arrangement) -> list[Any]:
        pairs = arrangement.members(self._job.ranks)
        return [self._group(at, pair, arrangement.threads) for at, pair in enumerate(pairs)]

    def _group(self, at: int, pair: tuple[int, int], threads: int | None) -> Any:
        key = (at, pair, threads)
        if key not in self._groups:
            backend = None if threads is None else _backend_with(threads)
            self._groups[key] = dist.new_group(list(pair), backend=backend)
        return self._groups[key]

    def _tensor(self, at: int, call: int) -> torch.Tensor:
        if (at, call) not in self._tensors:
            self._tensors[at, call] = torch.zeros(self._elements, device=self._job.device)
        return self._tensors[at, call]


def measure(job: Job, options: Options) -> Measured:
    """Measure times, traced calls and processors of each arrangement that fits on the ranks. Collective."""
    if job.ranks < 2:
        raise DdptraceError("a group needs at least 2 ranks: start at least 2 (--ranks 2)")
    floor, asked = Floor(job, options.nbytes, options.calls), list(arrangements(options, job))
    steps = {each.name: floor.step(each) for each in asked}
    threads = {each.name: floor.threads(each) for each in asked}
    times = interleaved(job, steps, options.repeats)
    loads = {name: _load_of(job, step) for name, step in steps.items()}
    runs = {name: _record(job, options, name, step) for name, step in steps.items()}
    calls = {name: calls_of(run, threads[name]) for name, run in runs.items()} if job.rank == 0 else {}
    return {
        "setup": setup_of(job),
        "environment": options.environment,
        "on_gpu": job.device.type == "cuda",
        "arrangements": [asdict(each) | {"name": each.name} for each in asked],
        "threads": threads,
        "times_ns": times,
        "loads": loads,
        "calls": calls,
    }


def _record(job: Job, options: Options, name: str, step: Callable[[], None]) -> Path:
    """Trace a run, in a folder named by its environment."""
    job.say(f"tracing {name}")
    folder = options.environment.replace("/", "_") or "as-it-is"
    return traced.record(job, f"{folder}/{name}", step, TRACED_STEPS)


def arrangements(options: Options, job: Job) -> Iterator[Arrangement]:
    """Yield all arrangements; only the most groups in a job that tries an environment. A pair needs two ranks."""
    for shape in SHAPES:
        fit = [n for n in sorted(set(options.groups)) if shape == "same" or 2 * n <= job.ranks] or [1]
        for mode in ("async",) if options.environment else MODES:
            for groups in fit[-1:] if options.environment else fit:
                yield Arrangement(shape, mode, groups)
        if job.backend == "gloo" and not options.environment:
            for threads in options.threads:
                yield Arrangement(shape, "async", fit[-1], threads)


def _one_by_one(turns: Sequence[tuple[Any, torch.Tensor]]) -> None:
    for group, tensor in turns:
        dist.all_reduce(tensor, group=group)


def _all_at_once(turns: Sequence[tuple[Any, torch.Tensor]]) -> None:
    works = [dist.all_reduce(tensor, group=group, async_op=True) for group, tensor in turns]
    for work in works:
        work.wait()


def _backend_with(threads: int) -> str:
    """Register Gloo with this number of worker threads in each group, and return its name as a backend.

    `new_group` passes no options to Gloo, but it makes any registered backend.
    """
    name = f"gloo_{threads}_threads"
    if not hasattr(dist.Backend, name.upper()):
        dist.Backend.register_backend(
            name, lambda store, rank, size, timeout: _gloo(store, rank, size, timeout, threads), devices=["cpu"]
        )
    return name


def _gloo(store: Any, rank: int, size: int, timeout: Any, threads: int) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout, options._threads, options._devices = timeout, threads, _devices(gloo)
    return gloo(store, rank, size, options)


def _devices(gloo: Any) -> list[Any]:
    """Return the devices that torch makes without options."""
    names = [name for name in os.environ.get(INTERFACES, "").split(",") if name]
    return [gloo.create_device(interface=name) for name in names] or [gloo.create_default_device()]


def _threads_of(group: Any) -> int:
    try:
        return int(group._get_backend(torch.device("cpu")).options._threads)
    except (AttributeError, RuntimeError):
        return 1


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


def calls_of(run: Path, threads: int) -> dict[str, Any] | None:
    """Return `Calls` of a traced run as JSON; None if it shows no execution. `threads`: workers of each group."""
    result = traced.analysis(run)
    profiled = {(step.rank, step.step) for step in result.steps if step.profiled}
    queues: dict[tuple[int, int], dict[str, list[Timed]]] = defaultdict(lambda: defaultdict(list))
    evidence = set()
    for row in result.collectives:
        if row.part or row.step is None or (row.rank, row.step) not in profiled or row.exec_start_at_ns is None:
            continue
        queues[row.rank, row.step][row.group].append((row.launch_at_ns, row.exec_start_at_ns, row.exec_end_at_ns or 0))
        evidence.add("" if row.evidence is None else row.evidence.value)
    return None if not queues else _mean_calls(list(queues.values()), threads, "+".join(sorted(evidence)))


def _mean_calls(steps: Sequence[dict[str, list[Timed]]], threads: int, evidence: str) -> dict[str, Any]:
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


def _load_of(job: Job, step: Callable[[], None]) -> dict[str, Any]:
    """Run the step and return the load of the host whose cores the ranks kept busiest. Collective."""
    job.meet()
    then = Account.now()
    for _ in range(LOADED_STEPS):
        step()
    job.finish()
    loads: list[Any] = job.gather((socket.gethostname(), cores(), Account.now().since(then)))
    by_host = [[each[1:] for each in loads if each[0] == host] for host in sorted({each[0] for each in loads})]
    wall_ns = max(spent[0] for _, _, spent in loads)
    return max((load_of_host(host, wall_ns) for host in by_host), key=lambda load: float(load["cpu_ratio"]))


def load_of_host(ranks: Sequence[tuple[int, tuple[int, ...]]], wall_ns: int) -> dict[str, Any]:
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
        "ready": sum(account.ready_ns for account in accounts) / wall_ns if SCHEDSTAT.exists() else None,
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


EXPERIMENT: Final = Experiment("groups", Options, measure, title, sections, setup)
