"""RPC workers as forks of a program that has imported torch once: what a launcher takes longest for."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from torch.distributed import rpc


def fork_workers(count: int, main: Callable[[int], None]) -> list[int]:
    """Run `main(rank)` in a process each; their exit codes, negative for a signal. All begin before any of torch's
    threads has, and none runs Python's shutdown."""
    pids = []
    for rank in range(count):
        pid = os.fork()
        if not pid:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
            os._exit(_ended(main, rank))
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def _ended(main: Callable[[int], None], rank: int) -> int:
    try:
        main(rank)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0


def join(rank: int, count: int, folder: Path) -> None:
    """Enter RPC as `worker<rank>`, over sockets alone. `folder` is one that all workers of this job share."""
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{folder / 'store'}", rpc_timeout=60, _transports=["uv"], _channels=["basic"]
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=count, rpc_backend_options=options)
