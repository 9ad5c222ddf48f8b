"""Hand-made files as torch.profiler writes them, and one rank loaded from them. Times in microseconds from zero."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddptrace.load.foreign.rank import load_traces
from ddptrace.load.sources import TraceFile
from ddptrace.load.tables import LoadedRank
from ddptrace.load.windows.comm_kernels import CommRule

Event = dict[str, Any]
MAIN, ENGINE, STREAM = 1, 2, 7


def event(category: str, name: str, tid: Any, begin: float, end: float, pid: Any = 1, **args: Any) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": begin, "dur": end - begin, "args": args,
    }  # fmt: skip


def op(name: str, begin: float, end: float, tid: Any = MAIN, **args: Any) -> Event:
    return event("cpu_op", name, tid, begin, end, **args)


def said(name: str, begin: float, end: float, tid: Any = MAIN, **args: Any) -> Event:
    return event("user_annotation", name, tid, begin, end, **args)


def node(begin: float, end: float, tid: Any = ENGINE, name: str = "AddmmBackward0") -> Event:
    return op(f"autograd::engine::evaluate_function: {name}", begin, end, tid)


def launch(correlation: int, begin: float, end: float, tid: Any = MAIN) -> Event:
    return event("cuda_runtime", "cudaLaunchKernel", tid, begin, end, correlation=correlation)


def kernel(name: str, correlation: int, begin: float, end: float, stream: Any = STREAM, **args: Any) -> Event:
    return event("kernel", name, stream, begin, end, pid=0, correlation=correlation, **args)


def nccl(
    correlation: int, at: float, begin: float, end: float, op_name: str = "all_reduce", tid: Any = MAIN, **args: Any
) -> list[Event]:
    """A collective in full: the range at `at`, the launch in it, the kernel from `begin` to `end`."""
    return [
        said(f"nccl:{op_name}", at, at + 4, tid, **args),
        launch(correlation, at + 1, at + 3, tid),
        kernel("ncclDevKernel_Generic(ncclDevComm*)", correlation, begin, end, stream=20),
    ]


def gloo(begin: float, end: float, tid: int = 11, name: str = "all_reduce", **args: Any) -> Event:
    return said(f"gloo:{name}", begin, end, tid, **args)


def copy(begin: float, end: float, tid: Any = MAIN) -> Event:
    """DDP copies reduced gradients back."""
    return op("torch.distributed.ddp.reducer::copy_bucket_to_grad", begin, end, tid)


def write(path: Path, events: Sequence[Event], **file: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": list(events)} | file))
    return path


def load(folder: Path, *events: Event, rules: Sequence[CommRule] = (), **file: Any) -> LoadedRank:
    """Rank 3 from one file of these events."""
    path = write(folder / "trace.json", events, **file)
    return load_traces(TraceFile(3, (path,)), zero_unix_ns=0, cache=None, rules=rules)
