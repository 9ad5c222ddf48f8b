"""What is told of process groups: never a rank that nobody knows, and never one group's ranks for another's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import ddptrace
from ddptrace.capture.collectives.tap import silent_group
from ddptrace.load.run import read_run
from ddptrace.load.tables import RankRun

RANKS = 4


@contextmanager
def world(backend: str, ranks: int) -> Iterator[None]:
    """Rank 0 of such a default group. The other ranks of a fake one are not there, and nobody waits for them."""
    store = FakeStore() if backend == "fake" else dist.HashStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def made_by_hand(name: str, ranks: int) -> Any:
    """A group that torch.distributed does not list."""
    group = silent_group(ranks)
    group._set_group_name(name)
    return group


def loaded(path: Path) -> RankRun:
    (rank,) = read_run(path).ranks
    return rank


def test_of_a_group_that_torch_does_not_list_neither_ranks_nor_peers_are_made_up(tmp_path: Path) -> None:
    with world("fake", RANKS):
        group = made_by_hand("by hand", 2)
        with ddptrace.trace(tmp_path):
            group.send([torch.ones(2)], 1, 0).wait()
            group.allreduce([torch.ones(2)]).wait()
            dist.send(torch.ones(2), 3)
    rank = loaded(tmp_path)
    assert {one.name: one.ranks for one in rank.groups} == {"by hand": (), "0": (0, 1, 2, 3)}
    assert [(call.op, call.group, call.peer) for call in rank.calls] == [
        ("send", "by hand", None),
        ("all_reduce", "by hand", None),
        ("send", "0", 3),
    ]
    assert [call.group_size for call in rank.calls[:2]] == [2, 2]  # it says so itself


def test_a_name_that_is_used_again_after_the_groups_were_destroyed_is_of_another_group(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path):
        for other in (1, 2, 3):
            with world("fake", RANKS):
                pair = dist.new_group([0, other])
                dist.send(torch.ones(2), other, pair)
                dist.all_reduce(torch.ones(2))
    rank = loaded(tmp_path)
    pairs = [(call.group, call.peer) for call in rank.calls if call.op == "send"]
    assert pairs == [("1", 1), ("1 #2", 2), ("1 #3", 3)]
    told = {one.name: one.ranks for one in rank.groups}
    assert told == {"1": (0, 1), "1 #2": (0, 2), "1 #3": (0, 3)} | dict.fromkeys(("0", "0 #2", "0 #3"), (0, 1, 2, 3))


def test_reducers_are_of_the_group_of_their_time(tmp_path: Path) -> None:
    original = distributed_c10d._update_default_pg
    with ddptrace.trace(tmp_path):
        for _ in range(2):
            with world("gloo", 1):
                model = DistributedDataParallel(nn.Linear(4, 4))
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for _ in range(2):
                    model(torch.ones(2, 4)).sum().backward()
                    optimizer.step()
    assert distributed_c10d._update_default_pg is original
    rank = loaded(tmp_path)
    assert [reducer.group for reducer in rank.reducers] == ["0", "0 #2"]
    result = ddptrace.analyze(tmp_path)
    assert [(bucket.step, bucket.reducer) for bucket in result.buckets] == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_a_default_group_that_came_during_the_trace_or_before_it_has_one_name(tmp_path: Path) -> None:
    with world("fake", RANKS), ddptrace.trace(tmp_path / "before"):
        dist.all_reduce(torch.ones(2))
    with ddptrace.trace(tmp_path / "during"), world("fake", RANKS):
        dist.all_reduce(torch.ones(2))
    assert [loaded(tmp_path / name).calls[0].group for name in ("before", "during")] == ["0", "0"]
