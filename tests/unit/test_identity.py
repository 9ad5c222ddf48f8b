"""Which rank a process is where several worlds know it, and how rank 0's word comes to all of them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddptrace.capture import identity


class Agent:
    """What `identity` asks of an RPC agent."""

    def __init__(self, worker: int, count: int, store: object = None) -> None:
        self.store = store
        self._worker, self._count = worker, count

    def get_worker_info(self) -> SimpleNamespace:
        return SimpleNamespace(id=self._worker)

    def get_worker_infos(self) -> list[object]:
        return [object()] * self._count


@pytest.mark.parametrize(
    ("group", "agent", "environ", "rank", "world"),
    [
        (None, None, {}, None, None),
        (None, None, {"RANK": "3"}, 3, None),
        (None, None, {"WORLD_SIZE": "8"}, None, 8),
        ((1, 2), None, {"RANK": "5", "WORLD_SIZE": "2"}, 1, 2),
        ((1, 2), (3, 4), {}, 3, 4),
        ((1, 4), (3, 4), {}, 1, 4),
        ((1, 8), (3, 4), {"RANK": "0", "WORLD_SIZE": "4"}, 1, 8),
        ((1, 2), (3, 4), {"RANK": "7", "WORLD_SIZE": "8"}, 7, 8),
        (None, (3, 4), {"RANK": "0"}, 3, 4),
    ],
)
def test_the_largest_world_says_which_rank_this_is(
    monkeypatch: pytest.MonkeyPatch, group: tuple[int, int] | None, agent: tuple[int, int] | None,
    environ: dict[str, str], rank: int | None, world: int | None,
) -> None:  # fmt: skip
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if group is not None:
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_rank", lambda: group[0])
        monkeypatch.setattr(dist, "get_world_size", lambda: group[1])
    monkeypatch.setattr(identity, "_rpc_agent", lambda: None if agent is None else Agent(*agent))
    assert (identity.current_rank(), identity.current_world_size()) == (rank, world)


def test_a_process_tells_what_it_is_known_by_later() -> None:
    """Beside what `ps` and the kernel say of it."""
    said = identity.describe_process(0)
    pid = str(os.getpid())
    age_s = int(subprocess.run(["ps", "-o", "etimes=", "-p", pid], capture_output=True, text=True, check=True).stdout)
    born_s = said["started_ticks"] / os.sysconf("SC_CLK_TCK")
    assert time.clock_gettime(time.CLOCK_BOOTTIME) - born_s == pytest.approx(age_s, abs=2)
    assert said["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert Path("/proc/self/ns/time").stat().st_ino == int(said["time_namespace"].strip("time:[]"))
    assert said["versions"]["torch"] == torch.__version__  # rank 0's word on its own may come later, or never
    assert said["main_thread"] == os.getpid()  # as Linux numbers threads


def test_what_the_system_does_not_say_of_a_process_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, *_: object, **__: object) -> str:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(Path, "readlink", missing)
    said = identity.describe_process(0)
    assert said["pid"] == os.getpid() and not {"boot_id", "time_namespace", "started_ticks"} & set(said)


def with_stores(monkeypatch: pytest.MonkeyPatch, **stores: Any) -> None:
    monkeypatch.setattr(identity, "_stores", lambda: stores)


def test_rank_0_is_heard_through_every_store_also_one_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    group, workers = dist.HashStore(), dist.HashStore()
    rank_0, other = identity.Agreement(0), identity.Agreement(0)
    with_stores(monkeypatch, group=group)
    assert rank_0.publish("a", None)
    with_stores(monkeypatch, rpc=workers)
    assert other.learn(wait=False) is None
    with_stores(monkeypatch, rpc=workers, group=group)
    assert rank_0.publish("a", None)
    assert other.learn(wait=False) == {"run_id": "a", "refused": None}
    with_stores(monkeypatch, rpc=workers)
    assert other.learn(wait=True) == {"run_id": "a", "refused": None}


def test_a_store_that_is_gone_or_silent_does_not_hide_the_one_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("planted")

    group = dist.HashStore()
    with_stores(monkeypatch, group=group)
    identity.Agreement(0).publish("a", None)
    with_stores(monkeypatch, gone=Gone(), silent=dist.HashStore(), group=group)
    assert identity.Agreement(0).learn(wait=True) == {"run_id": "a", "refused": None}
