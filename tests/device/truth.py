"""What must be true of a training, computed from what ran on the device alone.

What ran is a list of entries, each as `testdev.Entry`: the test device's ledger; on a GPU, the kernels and copies of
Kineto's file. All times are ns since the Unix epoch.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.device.device import HERE

Json = dict[str, Any]
Spans = list[tuple[int, int]]

WORK: Final = ("kernel", "collective", "copy")  # what is work, and not waiting
PARTS: Final = ("compute_ns", "comm_ns", "hidden_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
CALLS: Final = {
    "aten::item": "synchronize",
    "aten::_local_scalar_dense": "synchronize",
    "aten::nonzero": "synchronize",
    "enumerate(DataLoader)#": "data",
    "cudaLaunchKernel": "launch",
    "cudaMemcpyAsync": "copy",
    "Synchronize": "synchronize",
    "": "runtime",
}
"""Causes of idle time by part of the name of the call that the host was in; the first that fits. The first four are
ranges of a profiler file, which own every call in them."""
OWNERS: Final = 4

WAITS: Final = ("copy", "synchronize")
"""Causes in which the host waits for the device."""
FAR_NS: Final = 20_000_000
"""So long before a step, a wait may still tell."""


def told_by(out: Path, rank: int) -> Json:
    """Return what a rank of a program left."""
    found: Json = json.loads((out / f"told-{rank}.json").read_text())
    return found


def file_of(path: Path) -> Json:
    """Read a profiler file."""
    content = path.read_bytes()
    found: Json = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return found


def work_of(ledger: Sequence[Json], file: Json) -> list[Json]:
    """Return the work of a training: the ledger's; where there is none, the file's."""
    return [entry for entry in (ledger if HERE.has_ledger else entries_of(file)) if entry["kind"] in WORK]


def entries_of(file: Json) -> list[Json]:
    """Return the work in a profiler file as the ledger would have it."""
    zero_ns = file.get("baseTimeNanoseconds", 0)
    calls = {
        event["args"]["correlation"]: event
        for event in file["traceEvents"]
        if event.get("cat") in ("cuda_runtime", "cuda_driver", "privateuse1_runtime") and "correlation" in event["args"]
    }
    return [
        _entry(event, calls.get(event["args"].get("correlation")), zero_ns)
        for event in file["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]


def _entry(event: Json, call: Json | None, zero_ns: int) -> Json:
    begin = zero_ns + ns_of(event["ts"])
    called = begin if call is None else zero_ns + ns_of(call["ts"])
    is_collective = event["name"].startswith("nccl")
    return {
        "kind": "copy" if event["cat"] != "kernel" else "collective" if is_collective else "kernel",
        "name": event["name"],
        "stream": event["tid"],
        "begin_ns": begin,
        "end_ns": begin + ns_of(event["dur"]),
        "correlation": event["args"].get("correlation"),
        "launched_ns": called,
        "called_ns": called,
        "is_launched": call is not None,
        "returned_ns": begin if call is None else called + ns_of(call["dur"]),
    }


def owners_in(file: Json) -> list[Json]:
    """Return the ranges of a profiler file that own every call in them, as calls."""
    zero_ns, names = file.get("baseTimeNanoseconds", 0), tuple(CALLS)[:OWNERS]
    return [
        {
            "name": event["name"],
            "thread": event["tid"],
            "begin_ns": zero_ns + ns_of(event["ts"]),
            "end_ns": zero_ns + ns_of(event["ts"]) + ns_of(event["dur"]),
            "correlation": None,
        }
        for event in file["traceEvents"]
        if event.get("cat") in ("cpu_op", "user_annotation") and event["name"].startswith(names)
    ]


def ns_of(us: float) -> int:
    return round(us * 1000)


def in_launch_order(work: Sequence[Json], kind: str) -> list[Json]:
    return sorted((entry for entry in work if entry["kind"] == kind), key=lambda entry: entry["launched_ns"])


def ends_of_steps(work: Sequence[Json], hosts_ns: Sequence[int]) -> list[int]:
    """Return when each step was over on the device: with the last work that the host launched before it was over there.
    `hosts_ns`: when that was."""
    return [max(entry["end_ns"] for entry in work if entry["called_ns"] < end) for end in hosts_ns]


def parts(work: Sequence[Json], begin: int, end: int) -> dict[str, int]:
    """Cut the time at every begin and end of work, and look what runs in each piece."""
    found = dict.fromkeys(PARTS, 0)
    for left, right, running in pieces(work, begin, end):
        computes, communicates = "kernel" in running, "collective" in running
        found["compute_ns"] += (right - left) * computes
        found["comm_ns"] += (right - left) * communicates
        found["hidden_ns"] += (right - left) * (computes and communicates)
        found["exposed_comm_ns"] += (right - left) * (communicates and not computes)
        found["exposed_memory_ns"] += (right - left) * (running == {"copy"})
        found["idle_ns"] += (right - left) * (not running)
    return found


def pieces(work: Sequence[Json], begin: int, end: int) -> Iterator[tuple[int, int, set[str]]]:
    """Yield the pieces between begin and end in which the same kinds of work run."""
    near = [one for one in work if one["begin_ns"] < end and one["end_ns"] > begin]
    for left, right in pairwise(_cuts(begin, end, ((one["begin_ns"], one["end_ns"]) for one in near))):
        yield left, right, {one["kind"] for one in near if one["begin_ns"] <= left and right <= one["end_ns"]}


def charged(work: Sequence[Json], begin: int, end: int) -> Iterator[tuple[Json, int]]:
    """Yield the exposed pieces between begin and end, each with the collective it is charged to: of those that run, the
    one that began first; of two at one instant, the one that was launched first."""
    collectives = [one for one in work if one["kind"] == "collective"]
    for left, right, running in pieces(work, begin, end):
        if "collective" in running and "kernel" not in running:
            on = [one for one in collectives if one["begin_ns"] <= left and right <= one["end_ns"]]
            yield min(on, key=lambda one: (one["begin_ns"], one["launched_ns"])), right - left


def _cuts(begin: int, end: int, spans: Iterator[tuple[int, int]]) -> list[int]:
    return sorted({begin, end, *(at for span in spans for at in span if begin < at < end)})


def idle_by_cause(work: Sequence[Json], calls: Sequence[Json], main: int, begin: int, end: int) -> Counter[str]:
    """Return the idle time between begin and end by what held the host, as far as its calls tell; the rest has none.

    A gap belongs to the thread that launched the work after it, if it did so in the gap, else to `main`. Of two calls
    at one instant, the one that comes first in `calls` counts. Where that thread waited for the device when the gap
    began, its work after that belongs to the wait, as long as it had waited.
    """
    found: Counter[str] = Counter()
    ahead: Spans = [(one["returned_ns"], one["begin_ns"]) for one in work]
    of_thread: defaultdict[int, list[Json]] = defaultdict(list)
    for call in calls:
        of_thread[call["thread"]].append(call)
    threads = {call["correlation"]: call["thread"] for call in calls}
    waits = _waits(work, of_thread, threads, main, begin, end)
    for left, right in _gaps(work, begin, end):
        thread = _launching(work, threads, main, left)
        near: list[Json] = [one for one in of_thread[thread] if one["begin_ns"] < right and one["end_ns"] > left]
        waiting = [span for span in ahead if span[0] < right and span[1] > left]
        mine = waits[thread]
        edges = (*waiting, *((one["begin_ns"], one["end_ns"]) for one in near), *((at, until) for at, until, _ in mine))
        for one, other in pairwise(_cuts(left, right, iter(edges))):
            queued = any(span[0] <= one and other <= span[1] for span in waiting)
            inside = (call["name"] for call in near if call["begin_ns"] <= one and other <= call["end_ns"])
            cause = _cause(next(inside, None))
            after = max((wait for wait in mine if wait[0] <= one), default=None)
            if after is not None and one < after[1] and cause not in WAITS:
                cause = after[2]
            found["queued" if queued else cause] += other - one
    return found


def _waits(
    work: Sequence[Json], of_thread: dict[int, list[Json]], threads: dict[int, int], main: int, begin: int, end: int
) -> defaultdict[int, list[tuple[int, int, str]]]:
    """By thread: when the device ran dry while the thread waited for it, until when its work is the wait's, and the
    cause of that."""
    found: defaultdict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for left, _ in _gaps(work, begin - FAR_NS, end):
        at, thread = _gap_begin(work, left), _launching(work, threads, main, left)
        around = [call for call in of_thread[thread] if call["begin_ns"] <= at < call["end_ns"]]
        queued = any(one["returned_ns"] <= at < one["begin_ns"] for one in work)
        for call in around if not queued else []:
            if (cause := _cause(call["name"])) in WAITS:
                found[thread].append((at, 2 * at - call["begin_ns"], cause))
    return found


def _gaps(work: Sequence[Json], begin: int, end: int) -> Spans:
    """Return the idle time between begin and end, each gap whole."""
    found: Spans = []
    for left, right, running in pieces(work, begin, end):
        if not running:
            found.append((left, right))
    return found


def _launching(work: Sequence[Json], threads: dict[int, int], main: int, at: int) -> int:
    following = min((one for one in work if one["begin_ns"] > at), key=lambda one: one["begin_ns"], default=None)
    if following is None or following["returned_ns"] <= _gap_begin(work, at):
        return main
    return threads.get(following["correlation"], main)


def _gap_begin(work: Sequence[Json], at: int) -> int:
    """Return when the gap began that holds this instant."""
    return max((one["end_ns"] for one in work if one["end_ns"] <= at), default=at)


def _cause(call: str | None) -> str:
    return "" if call is None else next(cause for part, cause in CALLS.items() if part in call)


def held_up_ns(ledger: Sequence[Json], begin: int, end: int) -> int:
    """Return how long the compute stream did nothing although the host had launched something on it, and the work of
    another stream was over that it waited for: on a busy machine its thread gets no processor at once."""
    mine = sorted((one for one in ledger if one["stream"] == 0), key=lambda one: (one["begin_ns"], one["end_ns"]))
    over = sorted(one["end_ns"] for one in ledger if one["kind"] in WORK and one["stream"] != 0)
    held, reached = 0, begin
    for one in mine:
        held += max(0, min(one["begin_ns"], end) - max(reached, one["launched_ns"]))
        reached = max(reached, one["end_ns"])
        if one["kind"] == "wait":
            released = over[bisect(over, one["end_ns"]) - 1] if over else begin
            held += max(0, min(one["end_ns"], end) - max(one["begin_ns"], released, begin))
    return held


def waiting_streams(ledger: Sequence[Json]) -> list[int]:
    """Return the streams that only wait: those of ddptrace."""
    kinds: defaultdict[int, set[str]] = defaultdict(set)
    for entry in ledger:
        kinds[entry["stream"]].add(entry["kind"])
    return [stream for stream, those in kinds.items() if those == {"wait", "event"}]


def woke_late_ns(ledger: Sequence[Json], begin: int, end: int) -> int:
    """Return how much later than the collectives of a stretch the stream went on that waits for each of them."""
    waiting = waiting_streams(ledger)
    assert len(waiting) <= 1
    waits = [entry for entry in ledger if entry["stream"] in waiting and entry["kind"] == "wait"]
    if not waits:
        return 0
    collectives = [entry for entry in ledger if entry["kind"] == "collective"][-len(waits) :]
    pairs = zip(collectives, waits, strict=True)
    return sum(wait["end_ns"] - one["end_ns"] for one, wait in pairs if begin <= one["begin_ns"] < end)


def union_ns(spans: Sequence[tuple[int, int]]) -> int:
    """Return the length of a union."""
    total, reach = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return total
