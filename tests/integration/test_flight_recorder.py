"""Dumps that torch itself wrote: of Gloo, here and now; of NCCL, on 16 GPUs on which faults were injected."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ddptrace.cli import main
from tests.launch import torchrun
from tests.programs import dumping


def diagnosed(folder: Path) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(main, ["diagnose", str(folder), "--json"])
    return done.exit_code, json.loads(done.stdout)


def line_of(function: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    number = next(first + k for k, line in enumerate(lines) if text in line)
    return f"programs/dumping.py:{number} in {function.__name__}"


def stopped(folder: Path, way: str) -> Path:
    folder.mkdir()
    torchrun("dumping.py", folder, way, ranks=4, has_dynamo=False)
    return folder


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("dumps") / "late", "late")


def test_a_rank_on_gloo_that_does_not_come_is_named_with_its_group_and_who_waits_where(late: Path) -> None:
    code, found = diagnosed(late)
    first = found["verdicts"][0]
    assert (code, first["kind"], first["absent"], first["waiting"]) == (3, "stuck", [2], [3])
    assert first["sentence"].startswith("rank 2 has not arrived: all_reduce #2 (32 B) of group 2; ranks 0 and 1 wait")
    waits = next(place for place in found["ranks"] if place["rank"] == 3)
    assert waits["site"] == line_of(dumping.sum_in_pair, "dist.all_reduce")
    assert found["ranks"][2]["doing"] == "after barrier #1 of group 0 (default_pg)"
    assert found["ranks"][2]["site"] == line_of(dumping.main, "dist.barrier()")


def test_the_same_is_told_from_json_without_lines(late: Path) -> None:
    code, found = diagnosed(late / "json")
    assert (code, found["verdicts"][0]["absent"], found["verdicts"][-1]["kind"]) == (3, [2], "doubt")
    assert all(place["site"] is None for place in found["ranks"])


def test_ranks_on_gloo_that_call_different_things_are_named_with_their_lines(tmp_path: Path) -> None:
    code, found = diagnosed(stopped(tmp_path / "parts", "parts"))
    first = found["verdicts"][0]
    assert (code, first["kind"], {*first["absent"], *first["waiting"]}) == (3, "mismatch", {2, 3})
    assert f"broadcast of 32 B on rank 2 at {line_of(dumping.stop, 'dist.broadcast')}" in first["sentence"]
    assert f"all_reduce of 32 B on rank 3 at {line_of(dumping.sum_in_pair, 'dist.all_reduce')}" in first["sentence"]


@pytest.mark.parametrize("job", ["gpu_error_1st", "lock_gil_2nd"])
def test_exactly_the_ranks_with_an_injected_fault_are_named_with_a_group_of_theirs(
    shared_dumps: Path, job: str
) -> None:
    log = (shared_dumps / job / "fault_injection.log").read_text()
    faulty = {int(rank) for rank in re.findall(r"Rank (\d+), fault_type", log)}
    _, found = diagnosed(shared_dumps / job)
    blaming = [verdict for verdict in found["verdicts"] if verdict["absent"]]
    assert {rank for verdict in blaming for rank in verdict["absent"]} == faulty
    assert {verdict["kind"] for verdict in blaming} == {"device" if job.startswith("gpu") else "stuck"}
    assert all(verdict["group"] and "PARALLEL_GROUP" in verdict["sentence"] for verdict in blaming)
