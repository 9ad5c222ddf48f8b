"""A job of 16 ranks (tensor × expert × pipeline parallel, 2 × 4 × 4) that one or two faults bring to a stop, played in
memory, and what the Flight Recorder of torch would dump of it.

A rank has a host, which launches calls and now and then waits for its device, and a device, which carries them out one
after the other; sends alone let later calls pass. A call runs once the devices of all its ranks are at it.

fault           host                      device                           dump
LOCK_GIL        launches nothing more     ends what was launched           as it is
GPU_ERROR       stops a few calls later   stops; reports nothing of late   as it is
GPU_SLEEP       goes on                   stops                            as it is
KILLED          launches nothing more     stops                            none
"""

from __future__ import annotations

import enum
import json
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

STAGES, REPLICAS, TENSOR = 4, 2, 2
WIDTH: Final = REPLICAS * TENSOR  # ranks of a stage
RANKS: Final = STAGES * WIDTH
MICROBATCHES, STEPS = 6, 3
REPORTED_LATE: Final = 8
"""Calls that a device has ended and not reported when it fails."""
AFTER_ERROR: Final = 3
"""Calls that a host still launches until it learns that its device failed."""
NBYTES: Final = 4

Ranks = tuple[int, ...]


class Fault(enum.Enum):
    LOCK_GIL = enum.auto()
    GPU_ERROR = enum.auto()
    GPU_SLEEP = enum.auto()
    KILLED = enum.auto()


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    label: str
    ranks: Ranks


@dataclass(eq=False, slots=True)
class Call:
    """One on one rank. `meets`: what it has in common with the calls of the others that it runs with."""

    group: Group
    op: str
    line: int
    elements: int
    meets: tuple[Any, ...] = ()
    turn: int = 0  # sequence number of a collective, or of a message
    is_message: bool = False
    at: int = 0
    began: int | None = None
    ended: int | None = None

    @property
    def lets_pass(self) -> bool:
        return " " in self.op and self.op.startswith("send")


@dataclass(slots=True)
class Rank:
    number: int
    program: Iterator[Call | None]
    fault: Fault | None = None
    since: int = 0  # when its fault comes, by the job's clock
    calls: list[Call] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    messages: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    waits: bool = False
    is_over: bool = False
    calls_then: int = 0  # launched when its fault came
    device_stops: bool = False

    def at_device(self) -> list[Call]:
        """What may run now. A kernel that sleeps comes after those that have begun."""
        found = []
        for call in self.calls:
            if call.ended is None:
                found.append(call)
                if not call.lets_pass:
                    break
        if not self.device_stops:
            return found
        return [call for call in found if self.fault is Fault.GPU_SLEEP and call.began is not None]

    def meet_fault(self, clock: int) -> None:
        if self.fault is not None and clock == self.since:
            self.calls_then = len(self.calls)
            self.device_stops = self.fault is not Fault.LOCK_GIL


def group_of(kind: str, rank: int) -> Group:
    stage, place = divmod(rank, WIDTH)
    first = stage * WIDTH
    ranks = {
        "WORLD": tuple(range(RANKS)),
        "TENSOR": (first + place // TENSOR * TENSOR, first + place // TENSOR * TENSOR + 1),
        "EXPERT": tuple(range(first, first + WIDTH)),
        "PIPELINE": tuple(range(place, RANKS, WIDTH)),
        "DATA": tuple(first + one for one in range(WIDTH) if one % TENSOR == place % TENSOR),
    }[kind]
    numbers = {"WORLD": 0, "TENSOR": 100, "EXPERT": 200, "PIPELINE": 300, "DATA": 400}
    number = numbers[kind] + (ranks[0] if kind != "WORLD" else 0)
    return Group(str(number), "default_pg" if kind == "WORLD" else f"{kind}_GROUP", ranks)


KINDS: Final = ("WORLD", "TENSOR", "EXPERT", "PIPELINE", "DATA")


def program(rank: int) -> Iterator[Call | None]:
    """Yield calls, and None where the host waits for its device."""
    for _ in range(STEPS):
        for batch in range(MICROBATCHES):
            yield from _receive(rank, -1, batch, 20)
            yield from _layer(rank, 100)
            yield from _send(rank, +1, batch, 30)
        for batch in range(MICROBATCHES):
            yield from _receive(rank, +1, batch, 40)
            yield from _layer(rank, 200)
            yield from _send(rank, -1, batch, 50)
        yield Call(group_of("DATA", rank), "_reduce_scatter_base", 60, 4096)
        yield Call(group_of("WORLD", rank), "all_reduce", 61, 1)
        yield None


def _layer(rank: int, line: int) -> Iterator[Call | None]:
    yield Call(group_of("TENSOR", rank), "_all_gather_base", line, 2048)
    yield Call(group_of("EXPERT", rank), "all_reduce", line + 1, 16)
    yield None  # how many tokens go where has to be known
    yield Call(group_of("EXPERT", rank), "all_to_all", line + 2, 512 + 10 * rank)
    yield Call(group_of("EXPERT", rank), "all_to_all", line + 3, 512)
    yield Call(group_of("TENSOR", rank), "_reduce_scatter_base", line + 4, 2048)


def _receive(rank: int, way: int, batch: int, line: int) -> Iterator[Call]:
    yield from _message(rank, rank + way * WIDTH, "recv", "<-", line + batch)


def _send(rank: int, way: int, batch: int, line: int) -> Iterator[Call]:
    yield from _message(rank, rank + way * WIDTH, "send", "->", line + batch)


def _message(rank: int, peer: int, op: str, arrow: str, line: int) -> Iterator[Call]:
    if 0 <= peer < RANKS:
        group = group_of("PIPELINE", rank)
        name = f"{op} {group.ranks.index(rank)}{arrow}{group.ranks.index(peer)}"
        yield Call(group, name, line, 1024, is_message=True)


class Job:
    """`faults`: by rank, what befalls it, and when."""

    def __init__(self, faults: Mapping[int, tuple[Fault, int]], launches: int = 3) -> None:
        self.clock, self.launches = 0, launches
        self.ranks = [Rank(rank, program(rank), *faults.get(rank, (None, 0))) for rank in range(RANKS)]
        self.counts: dict[tuple[Any, ...], int] = defaultdict(int)

    def play(self) -> None:
        """Go on until nothing goes on."""
        moved = True
        last = max((rank.since for rank in self.ranks), default=0)
        while moved or self.clock <= last:
            self.clock += 1
            for rank in self.ranks:
                rank.meet_fault(self.clock)
            moved = sum(self._launch(rank) for rank in self.ranks) > 0
            moved = self._run() or moved

    def _launch(self, rank: Rank) -> bool:
        before = len(rank.calls), rank.waits, rank.is_over
        for _ in range(self.launches):
            if rank.waits and all(call.ended is not None for call in rank.calls if not call.lets_pass):
                rank.waits = False
            if rank.waits or rank.is_over or self._host_is_stuck(rank):
                break
            call = next(rank.program, rank)
            if call is rank:
                rank.is_over = True
            elif call is None:
                rank.waits = True
            elif isinstance(call, Call):
                self._add(rank, call)
        return (len(rank.calls), rank.waits, rank.is_over) != before

    def _host_is_stuck(self, rank: Rank) -> bool:
        if rank.fault in (None, Fault.GPU_SLEEP) or self.clock < rank.since:
            return False
        return rank.fault is not Fault.GPU_ERROR or len(rank.calls) >= rank.calls_then + AFTER_ERROR

    def _add(self, rank: Rank, call: Call) -> None:
        counts = rank.messages if call.is_message else rank.turns
        counts[call.group.name] += 1
        call.turn, call.at = counts[call.group.name], self.clock
        if call.is_message:
            me = call.group.ranks.index(rank.number)
            here, there = (int(part) for part in call.op[5:].replace("<-", "->").split("->"))
            way = (here, there) if call.op.startswith("send") else (there, here)
            self.counts[call.group.name, way, me] += 1
            call.meets = call.group.name, way, self.counts[call.group.name, way, me]
        else:
            call.meets = call.group.name, call.turn
        rank.calls.append(call)

    def _run(self) -> bool:
        ready: dict[tuple[Any, ...], list[Call]] = defaultdict(list)
        for rank in self.ranks:
            for call in rank.at_device():
                ready[call.meets].append(call)
                if call.began is None:
                    call.began = self.clock
        moved = False
        for calls in ready.values():
            if len(calls) == (2 if calls[0].is_message else len(calls[0].group.ranks)):
                for call in calls:
                    call.ended = self.clock
                moved = True
        return moved

    # What is dumped ---------------------------------------------------------------------------------------------------

    def dump(
        self, rank: Rank, *, only_active: bool = False, timed: bool = False, frames: bool = True
    ) -> dict[str, Any]:
        late = REPORTED_LATE if rank.fault is Fault.GPU_ERROR else 0
        unreported = set(map(id, [call for call in rank.calls if call.ended is not None][-late:])) if late else set()
        numbers = {group_of(kind, rank.number).name: k for k, kind in enumerate(KINDS)}
        entries, status = list[dict[str, Any]](), dict[str, dict[str, int]]()
        for k, call in enumerate(rank.calls):
            is_over = call.ended is not None and id(call) not in unreported
            told = status.setdefault(str(numbers[call.group.name]), {"last_started_collective": -1})
            told["last_enqueued_collective"] = call.turn
            told.setdefault("last_completed_collective", -1)
            if is_over:
                told["last_completed_collective"] = call.turn
            if not (only_active and is_over):
                entries.append(_entry(k, call, numbers[call.group.name], is_over=is_over, timed=timed, frames=frames))
        groups = sorted(
            {call.group.name: call.group for call in rank.calls}.values(), key=lambda group: int(group.name)
        )
        config = {one.name: {"name": one.name, "desc": one.label, "ranks": str(list(one.ranks))} for one in groups}
        return {
            "version": "2.9",
            "pg_config": config,
            "nccl_version": "2.27.3",
            "pg_status": status,
            "entries": entries,
        }

    def dumps(self, **options: bool) -> dict[int, dict[str, Any]]:
        return {rank.number: self.dump(rank, **options) for rank in self.ranks if rank.fault is not Fault.KILLED}


TORCH: Final = "/opt/venv/lib/python3.12/site-packages/torch/distributed/"


def _entry(place: int, call: Call, number: int, *, is_over: bool, timed: bool, frames: bool) -> dict[str, Any]:
    begun = timed and call.began is not None
    stack = [
        {"name": call.op.split(" ")[0], "filename": f"{TORCH}distributed_c10d.py", "line": 2810},
        {"name": "wrapper", "filename": f"{TORCH}c10d_logger.py", "line": 81},
        {"name": "train_step", "filename": "/home/someone/work/train.py", "line": call.line},
        {"name": "<module>", "filename": "/home/someone/work/train.py", "line": 400},
    ]
    at = 1_790_000_000 * 10**9 + call.at * 10**6
    told = {
        "record_id": place, "pg_id": number, "process_group": (call.group.name, call.group.label),
        "collective_seq_id": 0 if call.is_message else call.turn, "p2p_seq_id": call.turn if call.is_message else 0,
        "op_id": place, "profiling_name": f"nccl:{call.op}", "time_created_ns": at,
        "input_sizes": [[call.elements]], "input_dtypes": ["BFloat16"],
        "output_sizes": [[call.elements]], "output_dtypes": ["BFloat16"],
        "state": "completed" if is_over else "started" if begun else "scheduled",
        "time_discovered_started_ns": at + 1 if begun else None,
        "time_discovered_completed_ns": at + 2 if is_over else None,
        "retired": is_over, "timeout_ms": 600_000, "is_p2p": call.is_message,
    }  # fmt: skip
    return {"frames": stack, **told} if frames else told


def stopped_by(faults: Mapping[int, tuple[Fault, int]]) -> Job:
    job = Job(faults)
    job.play()
    return job


def write(dumps: Mapping[int, Mapping[str, Any]], folder: Path, prefix: str = "nccl_trace_rank_") -> Path:
    """As torch writes pickles."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps.items():
        (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def write_json(dumps: Mapping[int, Mapping[str, Any]], folder: Path) -> Path:
    """As torch writes JSON: without frames, and with 0 for a time that is not known."""
    folder.mkdir(parents=True, exist_ok=True)
    change: Callable[[Any], Any] = lambda entry: {  # noqa: E731
        name: 0 if value is None else value for name, value in entry.items() if name != "frames"
    }
    for rank, dump in dumps.items():
        told = {**dump, "entries": [change(entry) for entry in dump["entries"]]}
        told["pg_status"] = {
            number: {name: str(value) for name, value in about.items()} for number, about in dump["pg_status"].items()
        }
        (folder / f"trace_{rank}.json").write_text(json.dumps(told))
    return folder
