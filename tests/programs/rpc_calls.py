"""Three workers that call one another in every way, and count what arrives. `rpc_calls.py FOLDER`.

Once traced, once not, and once with one worker that is not. Each worker writes what its own functions counted, by
caller, into FOLDER: an independent witness."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.rpc import remote, rpc_async, rpc_sync  # bound before the trace

import ddptrace
from tests.programs.rpc_workers import fork_workers, join

SIZE = 3
counts: Counter[str] = Counter()
lock = threading.Lock()


def count(key: str) -> None:
    with lock:
        counts[key] += 1


def equal(x: torch.Tensor) -> torch.Tensor:
    """Equal calls of several callers at once: nothing in them tells who it was."""
    count("equal")
    return 2 * x


def told(caller: str, x: torch.Tensor) -> torch.Tensor:
    count(f"told {caller}")
    return x + 1


def fails(caller: str) -> None:
    count(f"fails {caller}")
    raise ValueError(f"not for {caller}")


def slow(caller: str) -> None:
    time.sleep(0.6)
    count(f"slow {caller}")


@rpc.functions.async_execution
def relayed(to: str, x: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Gives a future: its own call of the next worker."""
    count("relayed")
    return rpc.rpc_async(to, equal, args=(x,))


def total(x: torch.Tensor) -> torch.Tensor:
    count("total")
    return x.sum()


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


class Layer:
    def __init__(self, width: int) -> None:
        self.weight = torch.ones(width, requires_grad=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count("forward")
        return self.weight * x


def meet(folder: Path, stage: str, rank: int) -> None:
    """Wait for the others without a word over the network."""
    (folder / f"{stage}-{rank}").touch()
    while len(list(folder.glob(f"{stage}-*"))) < SIZE:
        time.sleep(0.01)


def calls(rank: int) -> list[float]:
    """Every kind of call to both others; the values that came of it."""
    name, seen = f"worker{rank}", list[float]()
    for other in (f"worker{one}" for one in range(SIZE) if one != rank):
        seen += [float(rpc_sync(other, equal, args=(torch.ones(8),)).sum()) for _ in range(4)]
        futures = [rpc_async(other, told, args=(name, torch.ones(8))) for _ in range(3)]
        seen += [float(future.wait().sum()) for future in futures]
        seen.append(float(rpc.rpc_sync(other, torch.add, args=(torch.ones(2), 1)).sum()))
        seen.append(float(rpc_sync(other, scripted, args=(torch.ones(2),)).sum()))
        reference = remote(other, Layer, args=(8,))
        kept = remote(other, told, args=(name, torch.ones(8)))
        seen.append(float(kept.to_here().sum()))
        seen.append(float(reference.rpc_sync().forward(torch.ones(8)).sum()))
        seen.append(float(reference.rpc_async().forward(torch.ones(8)).wait().sum()))
        third = next(f"worker{one}" for one in range(SIZE) if f"worker{one}" not in (name, other))
        seen.append(float(rpc_sync(other, relayed, args=(third, torch.ones(8))).sum()))
        seen += failures(other, name)
        with dist_autograd.context() as context:
            x = torch.ones(8, requires_grad=True)
            y = reference.rpc_sync().forward(x)
            dist_autograd.backward(context, [y.pow(2).sum()])
            seen += [float(one.sum()) for one in dist_autograd.get_gradients(context).values()]
        with dist_autograd.context() as context:
            remote(other, total, args=(x,)).backward(context)
            seen += [float(one.sum()) for one in dist_autograd.get_gradients(context).values()]
    return seen


def failures(other: str, name: str) -> list[float]:
    """What the caller is told: an error of the callee's, whose traceback holds nothing of ddptrace's, and a timeout."""
    texts = []
    for function, timeout_s in ((fails, 60), (slow, 0.2)):
        try:
            rpc_sync(other, function, args=(name,), timeout=timeout_s)
        except (ValueError, RuntimeError) as error:
            texts.append(str(error))
    return [float(f"not for {name}" in texts[0]), float("ddptrace/" in texts[0]), float("timeout" in texts[1])]


def main(rank: int, folder: Path, mode: str) -> None:
    """Worker 1 joins before its trace, the others inside theirs; of "mixed" it is not traced at all."""
    torch.set_num_threads(1)
    traced = mode == "traced" or (mode == "mixed" and rank != 1)
    if rank == 1:
        join(rank, SIZE, folder)
    with ddptrace.trace(folder / "run") if traced else contextlib.nullcontext():
        if rank != 1:
            join(rank, SIZE, folder)
        meet(folder, "begin", rank)
        seen = calls(rank)
        while sum(counts[f"slow worker{one}"] for one in range(SIZE)) < SIZE - 1:  # runs whose callers gave up
            time.sleep(0.01)
        meet(folder, "end", rank)
        rpc.shutdown()
    (folder / f"{rank}.json").write_text(json.dumps({"counts": counts, "seen": seen}))


if __name__ == "__main__":
    for mode in ("traced", "plain", "mixed"):
        folder = Path(sys.argv[1]) / mode
        folder.mkdir()
        assert fork_workers(SIZE, functools.partial(main, folder=folder, mode=mode)) == [0] * SIZE
