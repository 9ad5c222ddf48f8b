"""A comparison tells how much communication was hidden on both sides, and what changed that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from foreign_files import Event, kernel, launch, nccl, op, said, write

import ddptrace
from ddptrace.analysis.diff.tables import Diff
from ddptrace.render.diff.sheet import diff_sheet
from ddptrace.render.diff.terminal import diff_text

STEPS = 4


def run(folder: Path, *, reduce: int = 200, gather: int = 100, hidden: int = 0) -> Path:
    """Steps of 3 ms: a product of 1 ms, then an all-reduce and, if it takes any time, an all-gather; in µs. The first
    `hidden` of the all-reduce run beside the product."""
    events: list[Event] = []
    for step in range(STEPS):
        at, number = 3000 * step, 10 * step
        begin = at + 1005 - hidden
        events += [
            said(f"ProfilerStep#{step + 3}", at, at + 2990),
            op("aten::mm", at, at + 4),
            launch(number, at + 1, at + 2),
            kernel("gemm", number, at + 5, at + 1005),
            *nccl(number + 1, at + 10, begin, begin + reduce),
            *(nccl(number + 2, at + 30, at + 2000, at + 2000 + gather, "all_gather") if gather else ()),
        ]
    return write(folder / "rank-0.json", events)


def difference(tmp_path: Path, before: dict[str, int], after: dict[str, int]) -> Diff:
    return ddptrace.diff(run(tmp_path / "before", **before), run(tmp_path / "after", **after))


def test_the_share_that_is_hidden_and_what_changed_it_are_told(tmp_path: Path) -> None:
    diff = difference(tmp_path, {"hidden": 150}, {"hidden": 0})
    assert diff.overlap == (pytest.approx(0.5), 0.0)
    cause = diff.overlap_changed_by
    assert cause is not None and (cause.kind, cause.op, cause.change_ns) == ("collective", "all_reduce", 150_000)
    told = diff_text(diff)
    assert "50 % of the communication is hidden before, 0 % after" in told and "all_reduce" in told
    assert any("all_reduce" in words for words in diff_sheet(diff).words)


def test_kinds_of_collectives_add_up_to_what_is_exposed(tmp_path: Path) -> None:
    diff = difference(tmp_path, {}, {"reduce": 300, "gather": 50})
    kinds = [row for row in diff.changes if row.kind == "collective"]
    [exposed] = [row for row in diff.changes if row.name == "exposed_comm" and row.kind == "part"]
    assert {row.op for row in kinds} == {"all_reduce", "all_gather"}
    assert sum(row.before_ns for row in kinds) == exposed.before_ns
    assert sum(row.after_ns for row in kinds) == exposed.after_ns


def test_a_collective_that_only_one_side_has_is_named(tmp_path: Path) -> None:
    diff = difference(tmp_path, {"gather": 0}, {"gather": 400})
    cause = diff.overlap_changed_by
    assert cause is not None and (cause.op, cause.before_ns, cause.after_ns) == ("all_gather", 0, 400_000)


def test_nothing_is_named_where_exposed_time_did_not_change(tmp_path: Path) -> None:
    diff = difference(tmp_path, {}, {})
    assert diff.overlap == (0.0, 0.0) and diff.overlap_changed_by is None
    assert "of the communication is hidden before" not in diff_text(diff)


def test_two_sets_of_real_gpu_traces(shared_traces: Path) -> None:
    control, blocked = (
        shared_traces / "old-format" / "control.json.gz",
        shared_traces / "judged" / "dlrm-blocked-copies",
    )
    diff = ddptrace.diff(control, blocked)
    assert diff.overlap is not None and [round(share, 2) for share in diff.overlap] == [0.48, 0.01]
    cause = diff.overlap_changed_by
    assert cause is not None and (cause.op, cause.origin) == ("all_reduce", "buckets") and cause.change_ns > 20e6
    told = json.loads(json.dumps(diff.to_json_dict()))
    assert round(told["overlap"]["before"], 2) == 0.48 and told["overlap_changed_by"]["op"] == "all_reduce"


def test_without_communication_there_is_no_overlap(shared_traces: Path) -> None:
    judged = shared_traces / "judged"
    diff = ddptrace.diff(judged / "data-bound-resnet50-0workers", judged / "resnet50-4workers")
    assert diff.overlap is None and diff.overlap_changed_by is None
    assert diff.to_json_dict()["overlap"] is None
