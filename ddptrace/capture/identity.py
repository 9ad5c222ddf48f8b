"""Which rank this is, which job, and what rank 0 decided: learned from torch.distributed or torchrun's environment."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

ANSWER_TIMEOUT_S: Final = 10.0
ASK_AGAIN_S: Final = 0.02

STARTED: Final = 19
"""The field of /proc/self/stat, after the name, that holds the start of the process in clock ticks since the boot."""


def current_rank() -> int | None:
    """Return this process's rank in the largest world that has it: in a job with parameter servers a process group may
    hold only the trainers. None while it is unknown (no process group, no RPC, no RANK in the environment yet)."""
    known = [(size, rank) for size, rank in _places() if rank is not None]
    return max(known, key=lambda place: place[0])[1] if known else None


def current_world_size() -> int | None:
    return max((size for size, _ in _places()), default=0) or None


def _places() -> Iterator[tuple[int, int | None]]:
    """Yield world sizes (0 unknown) and this process's rank in each; of equally large worlds the first counts."""
    if has_group():
        yield dist.get_world_size(), dist.get_rank()
    agent = _rpc_agent()
    if agent is not None:
        yield len(agent.get_worker_infos()), int(agent.get_worker_info().id)
    size, rank = (os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK"))
    yield int(size) if size.isdigit() else 0, int(rank) if rank.isdigit() else None


def attempt() -> int:
    """Return how often the elastic launcher has restarted the job's workers."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0


def job() -> str | None:
    """Return the elastic launcher's name of the job, the same in all attempts; None without such a launcher."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if name != "none":
        return name or None
    logs = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parents  # <of this launcher>/attempt_0/<rank>/error.json
    return f"{socket.gethostname()}:{logs[2]}" if len(logs) > 3 else None


def describe_process(rank: int | None) -> dict[str, Any]:
    """Return the content of `meta.json` about a rank."""
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        **_device(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "versions": describe_versions(),
    } | _of_system()


def _of_system() -> dict[str, Any]:
    """Return what distinguishes this process from a later one with its pid, and which clock it reads, as far as the
    system reports it."""
    facts: dict[str, Callable[[], Any]] = {
        "boot_id": lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "time_namespace": lambda: str(Path("/proc/self/ns/time").readlink()),
        "started_ticks": lambda: int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[STARTED]),
        "main_thread": lambda: threading.main_thread().native_id,
    }
    found = {}
    for name, ask in facts.items():
        with contextlib.suppress(OSError, ValueError, IndexError):
            found[name] = ask()
    return found


def _device() -> dict[str, str]:
    """Return the device in use so far, and what distinguishes it from all others, where torch knows that. Never the
    first to touch one: the program may not have chosen it yet."""
    for kind in ("cuda", "xpu", torch._C._get_privateuse1_backend_name()):
        module: Any = getattr(torch, kind, None)
        if getattr(module, "is_initialized", bool)():
            own_name = getattr(module, "get_device_name", None)
            name = str(own_name()) if own_name is not None else f"{kind}:{module.current_device()}"
            return {"device": name} | _device_uuid(module)
    return {"device": f"cpu ({platform.machine()})"}


def _device_uuid(module: Any) -> dict[str, str]:
    with contextlib.suppress(AttributeError, RuntimeError):  # of this torch, or for a device that is lost
        return {"device_uuid": str(module.get_device_properties(module.current_device()).uuid)}
    return {}


def describe_versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "platform": sys.platform}


class Agreement:
    """Rank 0's answer to all ranks about one trace, through the stores they share: no collective is issued.

    `number` counts the traces of this process, which every rank must enter in the same order.
    """

    def __init__(self, number: int) -> None:
        self.key = f"ddptrace/{attempt()}/{number}"
        self._published: set[str] = set()  # names of stores

    def publish(self, run_id: str, refused: str | None) -> bool:
        """Publish the run id, or why rank 0 refuses the directory, once in every store that exists by now: ranks may
        have different ones. Return False if there is no store yet."""
        for name, store in _stores().items():
            if name not in self._published:
                try:
                    store.set(self.key, json.dumps({"run_id": run_id, "refused": refused}))
                except RuntimeError:  # it is gone
                    continue
                self._published.add(name)
        return bool(self._published)

    def learn(self, *, wait: bool) -> dict[str, Any] | None:
        """Return the answer of rank 0; None if there is none yet (if `wait`, after `ANSWER_TIMEOUT_S`)."""
        stores = list(_stores().values())
        until = time.monotonic() + (ANSWER_TIMEOUT_S if wait else 0)
        while stores:
            for store in tuple(stores):
                try:
                    if store.check([self.key]):
                        answer: dict[str, Any] = json.loads(store.get(self.key))
                        return answer
                except (RuntimeError, ValueError):  # it is gone with its rank
                    stores.remove(store)
            if time.monotonic() >= until:
                break
            time.sleep(ASK_AGAIN_S)
        return None


def _stores() -> dict[str, Any]:
    """Return the stores that ranks share: those of the RPC workers and of the process group."""
    agent = _rpc_agent()
    found = {"rpc": getattr(agent, "store", None)}
    if has_group():
        found["group"] = dist.distributed_c10d._get_default_store()
    return {name: store for name, store in found.items() if store is not None}


def has_group() -> bool:
    """Whether this process has a default process group now."""
    return dist.is_available() and dist.is_initialized()


@dataclass(frozen=True, slots=True)
class Group:
    """The default process group. `store`: None if its ranks share none."""

    rank: int
    size: int
    store: Any


def group() -> Group | None:
    """Return the default process group; None if there is none now."""
    if not has_group():
        return None
    return Group(dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store())


def _rpc_agent() -> Any:
    """Return the RPC agent of this process; None while it is not an RPC worker."""
    api = sys.modules.get("torch.distributed.rpc.api")
    if api is None or not api._is_current_rpc_agent_set():
        return None
    return api._get_current_rpc_agent()
