"""Real traces, loaded and analyzed: published numbers to the nanosecond, and sums that hold on all of them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ddptrace.analysis.analyze import RunHead, analyze_rank, combine
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.device import Population
from ddptrace.load.foreign.rank import load_traces
from ddptrace.load.sources import find_traces
from ddptrace.load.tables import Identity

FOLDERS = ("dlrm-8ranks", "ddp-a100", "old-format/control.json.gz", "old-format/df_index_resolver.json.gz",
           "sampled-2of128")  # fmt: skip


@cache
def analyzed(path: Path) -> Result:
    files = find_traces([path])
    loaded = [load_traces(file, zero_unix_ns=files.first_unix_ns, cache=None, rules=()) for file in files.files]
    findings = (*files.findings, *(finding for rank in loaded for finding in rank.findings))
    head = RunHead("1.0", "0" * 32, files.first_unix_ns, files.world_size, findings)
    return combine(head, (analyze_rank(rank.run) for rank in loaded))


def published(numbers: dict[str, float]) -> Population:
    """Microseconds with three decimals."""
    ns = {key: round(value * 1000) for key, value in numbers.items() if key != "overlap_pct"}
    ratio = ns["overlap"] / ns["comm"] if ns["comm"] else None
    return Population(
        ns["span"], ns["idle"], ns["comp"], ns["comm"], ns["mem"], ns["overlap"], ns["exposed_comm"], ratio
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_both_populations_are_the_published_ones_to_the_nanosecond(shared_traces: Path, folder: str) -> None:
    expected = json.loads((shared_traces / "expected.json").read_text())
    rows = {row.file: row for row in analyzed(shared_traces / folder).ranks}
    wanted = {Path(file).name: numbers for file, numbers in expected.items() if file.startswith(folder)}
    assert rows.keys() == wanted.keys()
    for file, numbers in wanted.items():
        row: Any = rows[file]
        counts = row.gpu_events, row.gpu_events_with_launch
        assert (row.rank, *counts) == (numbers["rank"], numbers["gpu_events"], numbers["gpu_events_with_launch"])
        assert row.all == published(numbers["all"])
        assert row.with_launch == published(numbers["with_launch"])


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_parts_of_every_step_and_the_charges_of_its_collectives_add_up(shared_traces: Path, folder: str) -> None:
    result = analyzed(shared_traces / folder)
    charged: dict[tuple[int, int | None], int] = defaultdict(int)
    for row in result.collectives:
        charged[row.rank, row.step] += row.exposed_charged_ns or 0
    assert result.steps
    for step in result.steps:
        assert step.profiled
        assert min(step.compute_ns, step.exposed_comm_ns, step.exposed_memory_ns, step.idle_ns) >= 0
        parts = step.compute_ns + step.exposed_comm_ns + step.exposed_memory_ns + step.idle_ns
        assert parts == step.window_ns
        assert charged[step.rank, step.step] == step.exposed_comm_ns
        assert step.wait_ns is None


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_the_steps_do_not_hold_is_exactly_what_is_reported(shared_traces: Path, folder: str) -> None:
    result = analyzed(shared_traces / folder)
    whole = sum(row.all.span_ns - row.all.idle_ns for row in result.ranks if row.all)
    inside = sum(step.window_ns - step.idle_ns for step in result.steps)
    told = [finding.message for finding in result.findings if finding.code == "outside-window"]
    assert bool(told) == (whole > inside)
    assert all(f"({whole - inside} ns)" in message for message in told)


def test_eight_ranks_of_one_step_are_matched_whole(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "dlrm-8ranks")
    assert Counter(row.op for row in result.matches) == {"all_reduce": 3, "all_to_all": 5}
    assert {row.ranks for row in result.matches} == {tuple(range(8))}
    assert {row.match for row in result.collectives} == set(range(8))
    assert max(row.last_end_at_ns - row.first_end_at_ns for row in result.matches) < 10_000
    assert max(row.last_start_at_ns - row.first_start_at_ns for row in result.matches) > 7_000_000
    assert not [finding for finding in result.findings if finding.code == "match-refused"]


def test_ranks_are_matched_by_what_their_steps_launched_where_earlier_kernels_differ(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "judged" / "8ranks-zero-h100")
    shown = Counter(row.rank for row in result.collectives if row.part == 0)
    assert len(set(shown.values())) > 1  # rank 0 shows 76, rank 5 84
    assert len(result.matches) == 56 and {row.ranks for row in result.matches} == {tuple(range(8))}
    for match in result.matches:
        rows = [row for row in result.collectives if row.match == match.match and row.part == 0]
        assert len(rows) == 8 and all(row.launch_recorded for row in rows)
        assert len({(row.op, row.nbytes, row.dtype) for row in rows}) == 1
    last = Counter(max(match.ranks, key=dict(starts(result, match.match)).__getitem__) for match in result.matches)
    assert last.most_common(1) == [(1, 17)]
    assert not [finding for finding in result.findings if finding.code == "match-refused"]


def test_kernels_of_expert_parallelism_communicate(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "judged" / "moe-dualpipe-deepep")
    assert Counter(row.op for row in result.collectives) == {"notify": 16, "dispatch": 8, "combine": 8}
    (step,) = result.steps
    assert step.comm_ns is not None and step.hidden_ns is not None
    assert 112e6 < step.comm_ns < 114e6 and round(step.hidden_ns / step.comm_ns, 2) == 0.96
    assert "no-communication" not in {finding.code for finding in result.findings}


def starts(result: Result, match: int) -> list[tuple[int, int]]:
    """Of each rank, when it began the collective."""
    rows = [row for row in result.collectives if row.match == match and row.part == 0]
    return [(row.rank, row.exec_start_at_ns) for row in rows if row.exec_start_at_ns is not None]


def test_two_ranks_sampled_on_their_own_are_refused(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "sampled-2of128")
    assert not result.matches
    (finding,) = [one for one in result.findings if one.code == "match-refused"]
    assert finding.severity == "warning"


def test_buckets_of_a_real_ddp_run_are_numbered_in_every_backward(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "ddp-a100")
    assert [(row.step, row.index) for row in result.buckets] == [(s, i) for s in (4, 5, 6) for i in range(5)]
    assert {(row.layout, row.identity) for row in result.buckets} == {(0, "order")}
    assert sum(row.nbytes for row in result.buckets) == 3 * 102_228_128
    assert {row.identity for row in result.collectives} == {Identity.ARGUMENTS}
    assert all(row.busbw_bytes_per_s == row.algbw_bytes_per_s for row in result.collectives)  # 2 ranks: the factor is 1


def test_work_without_a_launch_is_told_where_it_is(shared_traces: Path) -> None:
    (finding,) = [one for one in analyzed(shared_traces / "dlrm-8ranks").findings if one.code == "without-launch"]
    assert finding.where == "ranks 1 and 3"
    assert "128 of 663" in finding.message
    assert not [one for one in analyzed(shared_traces / "ddp-a100").findings if one.code == "without-launch"]


def test_launches_that_the_files_do_not_hold_are_told_once_for_all_ranks(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "judged" / "8ranks-zero-h100")
    missing = sum(not row.launch_recorded and row.part == 0 for row in result.collectives)
    (finding,) = [finding for finding in result.findings if finding.code == "launch-missing"]
    assert finding.where == "ranks 0 to 7"
    assert f"The launches of {missing} collectives on ranks 0 to 7" in finding.message


@pytest.mark.parametrize("folder", ["data-bound-owlv2", "data-bound-resnet50-0workers", "hipfree-resnet18"])
def test_one_device_that_works_alone_is_not_advised_to_record_its_device(shared_traces: Path, folder: str) -> None:
    findings = {finding.code: finding for finding in analyzed(shared_traces / "judged" / folder).findings}
    assert findings["no-communication"].severity == "info"
    assert not [finding for finding in findings.values() if "ProfilerActivity.CUDA" in finding.message]


def test_every_odd_file_is_analyzed_to_rows_or_a_sentence(shared_traces: Path) -> None:
    for path in sorted((shared_traces / "odd").iterdir()):
        result = analyzed(path)
        assert len(result.ranks) == 1, path.name
        assert result.findings, path.name
