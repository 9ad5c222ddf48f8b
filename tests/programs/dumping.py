"""`dumping.py FOLDER WAY`: four ranks on Gloo come to a stop. Each dumps torch's own Flight Recorder, as a pickle and
as JSON, and ends.

WAY     rank 2 does not come to ...
late    the second all-reduce of its pair of ranks: it sleeps
parts   the same call as the others: it calls a broadcast where they call an all-reduce
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

CULPRIT = 2
RANKS = 4
CALLS = {"late": (4, 4, 2, 3), "parts": (4, 4, 3, 3)}
POLL_S = 0.2
FOREVER_S = 60


def dump(folder: Path, calls: int) -> None:
    """Once all ranks have come to where they stay, which is after so many calls."""
    rank = os.environ["RANK"]
    while len(json.loads(c10d._dump_fr_trace_json())["entries"]) < calls:
        time.sleep(POLL_S)
    meet(folder, f"ready.{rank}")
    time.sleep(POLL_S)  # what ended last is noted a moment later
    (folder / f"nccl_trace_rank_{rank}").write_bytes(c10d._dump_fr_trace())
    (folder / "json").mkdir(exist_ok=True)
    (folder / "json" / f"rank_{rank}.json").write_bytes(c10d._dump_fr_trace_json())
    meet(folder, f"dumped.{rank}")  # calls of the others fail once a rank has ended
    os._exit(0)


def meet(folder: Path, name: str) -> None:
    """Wait until all ranks have come here."""
    (folder / name).touch()
    while len(list(folder.glob(f"{name.partition('.')[0]}.*"))) < RANKS:
        time.sleep(POLL_S)


def sum_in_pair(pair: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(8), group=pair)


def stop(way: str, pair: dist.ProcessGroup) -> None:
    is_culprit = dist.get_rank() == CULPRIT
    if is_culprit and way == "late":
        time.sleep(FOREVER_S)
    if is_culprit and way == "parts":
        dist.broadcast(torch.ones(8), CULPRIT, group=pair)
    sum_in_pair(pair)
    dist.all_reduce(torch.ones(4))
    time.sleep(FOREVER_S)


def main() -> None:
    dist.init_process_group("gloo")
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[dist.get_rank() // 2]
    sum_in_pair(pair)
    dist.barrier()
    calls = CALLS[sys.argv[2]][dist.get_rank()]
    threading.Thread(target=dump, args=(Path(sys.argv[1]), calls)).start()
    stop(sys.argv[2], pair)


if __name__ == "__main__":
    main()
