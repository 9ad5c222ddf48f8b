"""Four RPC workers that no launcher told their rank, traced over an earlier run. `rpc_groups.py FOLDER`.

"first": workers 0 and 1 are trainers with a process group of their own, 2 and 3 serve. "last": it is 2 and 3 that
train, as ranks 0 and 1 of their group. "short": no group; they join inside the trace and leave at once."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import rpc

import ddptrace
from tests.programs.rpc_workers import fork_workers, join

SIZE = 4
TRAINERS = {"first": (0, 1), "last": (2, 3), "short": ()}
LEFT = ("rank-00005", "rank-pending-1")


def here(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def main(rank: int, folder: Path, mode: str) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]
    torch.set_num_threads(1)
    if mode != "short":
        join(rank, SIZE, folder)
    if rank in TRAINERS[mode]:
        place = TRAINERS[mode].index(rank)
        dist.init_process_group("gloo", f"file://{folder / 'group'}", rank=place, world_size=2)
    with ddptrace.trace(folder / "run", overwrite=True):
        if mode == "short":
            join(rank, SIZE, folder)
        rpc.rpc_sync(f"worker{(rank + 1) % SIZE}", here, args=(torch.ones(2),))
        if dist.is_initialized():
            dist.all_reduce(torch.ones(2))
        rpc.shutdown()
    if dist.is_initialized():
        dist.destroy_process_group()


def leave_an_earlier_run(run: Path) -> None:
    """A larger one, of which a rank was killed before it learned its number."""
    for name in LEFT:
        (run / name).mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    for path in (*run.iterdir(), run):
        os.utime(path, (1, 1))


if __name__ == "__main__":
    for mode in TRAINERS:
        folder = Path(sys.argv[1]) / mode
        leave_an_earlier_run(folder / "run")
        assert fork_workers(SIZE, functools.partial(main, folder=folder, mode=mode)) == [0] * SIZE
