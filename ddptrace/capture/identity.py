"""Which rank this is, which job, and what rank 0 decided: learned from torch.distributed or torchrun's environment."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ANSWER_TIMEOUT = timedelta(seconds=10)


def current_rank() -> int | None:
    """This process's rank; None where nobody has said (no process group yet and no RANK in the environment)."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    agent = _rpc_agent()
    if agent is not None:
        return int(agent.get_worker_info().id)
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None


def current_world_size() -> int | None:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdigit() else None


def attempt() -> int:
    """How often the elastic launcher has restarted the job's workers."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0


def job() -> str | None:
    """What the elastic launcher calls the job, the same in all its attempts; None without such a launcher."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if name != "none":
        return name or None
    logs = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parents  # <of this launcher>/attempt_0/<rank>/error.json
    return f"{socket.gethostname()}:{logs[2]}" if len(logs) > 3 else None


def describe_process(rank: int | None) -> dict[str, Any]:
    """What `meta.json` says of a rank."""
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": _device(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
    }


def _device() -> str:
    """What the program computes on so far. Never the first to touch CUDA: its device may not be chosen yet."""
    return torch.cuda.get_device_name() if torch.cuda.is_initialized() else f"cpu ({platform.machine()})"


def describe_versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "platform": sys.platform}


class Agreement:
    """Rank 0's word to all ranks about one trace, through the store they share: no collective is issued.

    `number` counts the traces of this process, which every rank must enter in the same order.
    """

    def __init__(self, number: int) -> None:
        self._key = f"ddptrace/{attempt()}/{number}"

    def publish(self, run_id: str, refused: str | None) -> bool:
        """Rank 0 tells the run id, or why the directory is refused. False where there is no process group, or none any
        more."""
        store = _store()
        if store is None:
            return False
        try:
            store.set(self._key, json.dumps({"run_id": run_id, "refused": refused}))
        except RuntimeError:
            return False
        return True

    def learn(self, *, wait: bool) -> dict[str, Any] | None:
        """What rank 0 said; None where it has not spoken yet (after `ANSWER_TIMEOUT`, if `wait`)."""
        store = _store()
        if store is None:
            return None
        try:
            if wait:
                store.wait([self._key], ANSWER_TIMEOUT)
            elif not store.check([self._key]):
                return None
            answer: dict[str, Any] = json.loads(store.get(self._key))
        except (RuntimeError, ValueError):  # nobody answered in time, or the store is gone with its rank
            return None
        return answer


def _store() -> Any:
    """Through which the ranks can tell each other something: the process group's, or that of the RPC workers."""
    if dist.is_available() and dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    agent = _rpc_agent()
    return None if agent is None else getattr(agent, "store", None)


def _rpc_agent() -> Any:
    """This process as an RPC worker; None while it is none."""
    api = sys.modules.get("torch.distributed.rpc.api")
    if api is None or not api._is_current_rpc_agent_set():
        return None
    return api._get_current_rpc_agent()
