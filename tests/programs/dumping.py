"""`dumping.py FOLDER WAY`: four ranks on Gloo come to a stop, and each dumps torch's own Flight Recorder, as a pickle and
as JSON, and ends.

WAY     rank 2 does not come to ...
late    the second all-reduce of its pair of ranks: it sleeps
parts   the same call as the others: it calls a broadcast where they call an all-reduce
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

CULPRIT = 2
LOOKED_AT_S = 1.0
FOREVER_S = 60


def dump(folder: Path) -> None:
    """Once all ranks have come to where they stay."""
    time.sleep(LOOKED_AT_S)
    rank = os.environ["RANK"]
    (folder / f"nccl_trace_rank_{rank}").write_bytes(c10d._dump_fr_trace())
    (folder / "json").mkdir(exist_ok=True)
    (folder / "json" / f"rank_{rank}.json").write_bytes(c10d._dump_fr_trace_json())
    os._exit(0)


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
    threading.Thread(target=dump, args=(Path(sys.argv[1]),)).start()
    stop(sys.argv[2], pair)


if __name__ == "__main__":
    main()
