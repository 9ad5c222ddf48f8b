"""What the records hold against an independent witness: torch.profiler's own events of the same run."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.load.run import read_run
from ddptrace.schema import RANGE_PREFIX
from tests.launch import torchrun

WITNESS = {
    "c10d::allreduce_": "all_reduce",
    "c10d::broadcast_": "broadcast",
    "c10d::allgather_": "all_gather",
    "c10d::send": "send",
    "c10d::recv_": "recv",
    "c10d::barrier": "barrier",
}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counted") / "run"
    torchrun("counted.py", path)
    return path


def kineto(run: Path, rank: int) -> list[dict[str, Any]]:
    with gzip.open(run / f"rank-{rank:05d}" / "kineto-0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_collective_that_the_profiler_saw_is_in_the_record_by_id(counted: Path, rank: int) -> None:
    events = kineto(counted, rank)
    seen = Counter(WITNESS[event["name"]] for event in events if event["name"].startswith("c10d::"))
    ids = {int(event["name"].removeprefix(RANGE_PREFIX)) for event in events if event["name"].startswith(RANGE_PREFIX)}
    recorded = Counter(call.op for call in read_run(counted).ranks[rank].calls if call.seq in ids)
    assert recorded == seen
    assert set(seen) == set(WITNESS.values()), "the program no longer issues every kind"


def test_in_the_window_every_gloo_collective_has_the_backends_own_range(counted: Path) -> None:
    result = ddptrace.analyze(counted)
    profiled = {(step.rank, step.step) for step in result.steps if step.profiled}
    assert len(profiled) == 2 * 4
    inside = [row for row in result.collectives if (row.rank, row.step) in profiled]
    assert {row.evidence for row in inside} == {"backend"}
    buckets = [row for row in result.buckets if (row.rank, row.step) in profiled]
    assert buckets
    assert all(row.evidence == "backend" for row in buckets)


def test_every_bucket_has_its_parameters_and_their_bytes_add_up_to_the_models_gradients(counted: Path) -> None:
    (rank, _), result = read_run(counted).ranks, ddptrace.analyze(counted)
    (reducer,) = rank.reducers
    nbytes = {parameter.name: parameter.nbytes for parameter in reducer.parameters}
    assert sum(nbytes.values()) == 4 * (6 * (128 * 128 + 128) + 2 * 128)
    for step in {row.step for row in result.buckets if row.rank == 0}:
        buckets = [row for row in result.buckets if row.rank == 0 and row.step == step]
        names = [name for row in buckets for name in row.parameters]
        assert sorted(names) == sorted(nbytes)
        assert sum(row.nbytes for row in buckets) == sum(nbytes.values())
        assert all(row.nbytes == sum(nbytes[name] for name in row.parameters) for row in buckets)


def test_layouts_change_where_ddp_rebuilt_them_and_ready_times_precede_the_launch(counted: Path) -> None:
    buckets = ddptrace.analyze(counted).buckets
    assert {row.layout for row in buckets if row.step == 0} == {0}
    assert {row.layout for row in buckets if row.step and row.step > 0} == {1}
    for row in buckets:
        assert row.first_ready_at_ns is not None
        assert row.ready_at_ns is not None
        assert row.first_ready_at_ns <= row.ready_at_ns <= row.launch_at_ns


def test_groups_are_told_with_their_ranks_and_backend(counted: Path) -> None:
    groups = {group.name: group for group in read_run(counted).ranks[1].groups}
    assert len(groups) == 2
    assert all(group.ranks == (0, 1) and group.backend == "gloo" and group.threads == 2 for group in groups.values())
