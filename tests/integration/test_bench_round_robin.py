"""`ddptrace bench round-robin` as two ranks that others start: groups take turns by bucket, and all is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from tests.benches import bench

GROUPS = (1, 3)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("round-robin")
    asked = "round-robin --workload convnet --cap 1 --groups 1,3 --rounds 2 --steps 1 --warmup 1"
    done = bench(*asked.split(), out=folder)
    assert done.said.count("# Process groups in turn") == 1, "rank 0 alone shows it"
    return folder


@pytest.fixture(scope="module")
def told(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "round-robin.json").read_text())
    return found


@pytest.mark.parametrize("count", GROUPS)
def test_bucket_i_is_reduced_by_group_i_modulo_their_number(out: Path, count: int) -> None:
    run = ddptrace.analyze(out / "runs" / f"{count}-groups-2-ranks")
    reduced = [row for row in run.collectives if row.bucket is not None and row.rank == 0]
    groups: dict[int, set[str]] = {}
    for row in reduced:
        assert row.bucket is not None
        groups.setdefault(row.bucket[2] % count, set()).add(row.group)
    assert len({row.bucket for row in reduced}) > max(GROUPS), "enough buckets for all groups"
    assert [len(named) for named in groups.values()] == [1] * count
    assert len(set.union(*groups.values())) == count


def test_one_group_is_measured_twice_as_the_null_control(told: dict[str, Any]) -> None:
    (job,) = told["measured"]
    assert set(job["times_ns"]) == {"1", "3", "1 again"}
    rows = told["sheet"]["grids"][0]["rows"]
    assert [row[0] for row in rows] == ["1", "3", "1 again"]
    assert rows[0][3] == "1" and rows[2][3] != "1"
    assert rows[2][5:] == ["-"] * 5, "the control is not traced"


def test_true_communication_and_how_many_ran_at_once_stand_beside(told: dict[str, Any]) -> None:
    (job,) = told["measured"]
    assert job["traced"].keys() == job["at_once"].keys() == {"1", "3"}
    for name, true in job["traced"].items():
        assert true["hidden_ns"] + true["exposed_ns"] == true["comm_ns"]
        assert job["at_once"][name] >= 1, "counted only while one runs"


def test_buckets_are_counted_and_the_words_rest_on_what_was_measured(told: dict[str, Any]) -> None:
    (job,) = told["measured"]
    assert f"in {job['buckets']} buckets" in told["sheet"]["title"]
    assert any(word.startswith("Between 2 ranks, with 3 groups a step takes ") for word in told["sheet"]["words"])
    assert told["sheet"]["words"][-1].startswith("Li et al. (VLDB 2020)")
