"""Hand-made records of a run, for the tests of analysis. Instants are small integers; unsaid fields are harmless."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddptrace.analysis.intervals import intersect, subtract, union
from ddptrace.load.tables import (
    Call,
    DeviceIdle,
    DeviceWork,
    ExecRange,
    Group,
    HookCall,
    IdleCause,
    Intervals,
    Layout,
    Parameter,
    Pause,
    PhaseMark,
    RankRun,
    Ready,
    Reducer,
    Run,
    StepMark,
    Window,
    Work,
)
from ddptrace.schema import Evidence, Phase, StepEnd

MAIN, ENGINE, OTHER_THREAD = 1, 2, 3


def spans(*pairs: tuple[int, int]) -> Intervals:
    return np.array(pairs, np.int64).reshape(-1, 2)


def step(ordinal: int, begin: int, end: int, ended_by: StepEnd = StepEnd.OPTIMIZER) -> StepMark:
    return StepMark(ordinal, ended_by, begin, end)


def mark(phase: Phase, begin: int, end: int, backward: int | None = None, thread: int = MAIN) -> PhaseMark:
    return PhaseMark(phase, begin, end, thread, backward)


def call(seq: int, launch: int, *, ran: tuple[int, int] | None = None, **fields: Any) -> Call:
    """A Python call on the main thread; `ran` is its execution as a profiler saw it."""
    known: dict[str, Any] = {
        "op": "all_reduce", "group": "0", "ordinal": seq, "issued_at_ns": launch, "nbytes_in": 8, "nbytes_out": 8,
        "dtype": "float32", "thread": MAIN, "is_sync": False, "is_native": False, "reducer": None, "hook": None,
        "done_at_ns": None, "waits": (),
        "exec": ExecRange(*ran, Evidence.BACKEND, "gloo:all_reduce", "worker") if ran else None,
    }  # fmt: skip
    return Call(seq=seq, launch_at_ns=launch, **(known | fields))


def ddp_call(seq: int, launch: int, nbytes: int, *, ran: tuple[int, int] | None = None, **fields: Any) -> Call:
    """A bucket's all-reduce as stock DDP issues it."""
    sizes = {"nbytes_in": nbytes, "nbytes_out": nbytes, "is_native": True, "reducer": 1}
    return call(seq, launch, ran=ran, **(sizes | fields))


def hook(seq: int, begin: int, end: int, done: int | None, **fields: Any) -> HookCall:
    known: dict[str, Any] = {
        "name": "my_hook", "reducer": 1, "index": 0, "backward": 0, "nbytes": 8, "dtype": "float32",
    }  # fmt: skip
    return HookCall(seq=seq, begin_at_ns=begin, end_at_ns=end, done_at_ns=done, **(known | fields))


def reducer(numels: Sequence[int], *layouts: Layout, number: int = 1, cap: int | None = None) -> Reducer:
    """Float32 parameters p0, p1, ... of these sizes."""
    parameters = tuple(Parameter(f"p{i}", numel, 4 * numel, "float32") for i, numel in enumerate(numels))
    return Reducer(number, "DistributedDataParallel", "Net", "0", cap, parameters, layouts)


def layout(number: int, from_backward: int, *buckets: tuple[int, ...]) -> Layout:
    return Layout(number, from_backward, buckets)


def ready(backward: int, *at: tuple[int, int], number: int = 1) -> Ready:
    """Pairs of (parameter, instant)."""
    return Ready(number, backward, np.array([p for p, _ in at], np.int64), np.array([t for _, t in at], np.int64))


def window(begin: int, end: int, *compute: tuple[int, int], memory: Iterable[tuple[int, int]] = ()) -> Window:
    return Window("kineto-0.json.gz", begin, end, spans(*compute), spans(*memory), False)


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel, copy or fill; `launch` is the begin and end of the host's call, None where the file has none."""

    begin: int
    end: int
    launch: tuple[int, int] | None = None
    kind: Work = Work.COMPUTE
    stream: str = "0:7"
    name: str = "gemm"
    module: str | None = None
    annotation: str | None = None
    operator: str | None = None


def comm_piece(begin: int, end: int, launch: tuple[int, int] | None = None, stream: str = "0:20") -> Piece:
    return Piece(begin, end, launch, Work.COMM, stream, "ncclDevKernel_AllReduce")


def device_work(*pieces: Piece) -> DeviceWork:
    pieces = tuple(sorted(pieces, key=lambda piece: piece.begin))
    names = tuple(
        dict.fromkeys(n for p in pieces for n in (p.name, p.module, p.annotation, p.operator) if n is not None)
    )
    streams = tuple(dict.fromkeys(piece.stream for piece in pieces))
    told = [[-1 if n is None else names.index(n) for n in (p.name, p.module, p.annotation, p.operator)] for p in pieces]
    numbers = [(p.begin, p.end, *(p.launch or (0, 0)), streams.index(p.stream)) for p in pieces]
    begin, end, launch_begin, launch_end, stream = np.array(numbers, np.int64).reshape(-1, 5).T
    name, module, annotation, operator = np.array(told, np.int64).reshape(-1, 4).T
    return DeviceWork(
        np.array([piece.kind for piece in pieces], np.uint8), stream, begin, end,
        np.array([piece.launch is not None for piece in pieces], np.bool_), launch_begin, launch_end,
        name, module, annotation, operator, streams, names,
    )  # fmt: skip


def gpu_window(begin: int, end: int, *pieces: Piece, file: str = "kineto-0.json.gz") -> Window:
    compute, memory = (
        union(spans(*((piece.begin, piece.end) for piece in pieces if piece.kind == kind)))
        for kind in (Work.COMPUTE, Work.MEMORY)
    )
    return Window(file, begin, end, compute, memory, True, device_work(*pieces), idle=device_idle(begin, end, *pieces))


def device_idle(begin: int, end: int, *pieces: Piece) -> DeviceIdle:
    """Gaps in which nothing of the host was recorded, cut where work is queued."""
    whole = spans((begin, end))
    gaps = subtract(whole, union(spans(*((piece.begin, piece.end) for piece in pieces))))
    queued = union(spans(*((piece.launch[1], piece.begin) for piece in pieces if piece.launch is not None)))
    parts = [(IdleCause.QUEUED, intersect(gaps, queued)), (IdleCause.NOTHING, subtract(gaps, queued))]
    rows = sorted((int(b), int(e), cause) for cause, part in parts for b, e in part)
    columns = np.array(rows, np.int64).reshape(-1, 3)
    nothing = np.full(len(rows), -1, np.int64)
    gap = np.searchsorted(gaps[:, 0], columns[:, 0], side="right") - 1
    cause = columns[:, 2].astype(np.uint8)
    return DeviceIdle(gap, columns[:, 0], columns[:, 1], cause, nothing, nothing, gaps, ())


def gpu_call(seq: int, launch: int, ran: tuple[int, int], **fields: Any) -> Call:
    """A collective that a device carried out."""
    known: dict[str, Any] = {
        "exec": ExecRange(*ran, Evidence.DEVICE, "ncclDevKernel_AllReduce", "0:20"), "on_device": True,
    }  # fmt: skip
    return call(seq, launch, **(known | fields))


def pause(begin: int, end: int) -> Pause:
    return Pause(begin, end, "starting the profiler")


def rank(number: int = 0, *, threads: int | None = 2, clean: bool = True, **fields: Any) -> RankRun:
    known: dict[str, Any] = dict.fromkeys(
        ("steps", "phases", "calls", "hooks", "ready", "reducers", "windows", "pauses"), ()
    )
    known["groups"] = (Group("0", (0, 1), "gloo", threads),)
    recorded = fields.pop("recorded", True)
    listed = {name: tuple(value) for name, value in (known | fields).items()}
    return RankRun(rank=number, host="node0", pid=4000, device="cpu", clean=clean, dropped=0, begin_at_ns=0,
                   end_at_ns=1000, recorded=recorded, **listed)  # fmt: skip


def run(*ranks: RankRun, world_size: int | None = 2, findings: Iterable[Any] = ()) -> Run:
    return Run(Path("run"), "1.0", "f" * 32, 0, world_size, ranks, tuple(findings))
