"""`ddptrace analyze` on traces that others recorded with torch.profiler, against numbers worked out by others."""

from __future__ import annotations

import functools
import gzip
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import ddptrace_says

Json = dict[str, Any]
Analyze = Callable[..., Json]

FOLDERS = ("ddp-a100", "dlrm-8ranks", "old-format", "sampled-2of128")
NAMES = {
    "span": "span_ns", "idle": "idle_ns", "comp": "compute_ns", "comm": "comm_ns", "mem": "memory_ns",
    "overlap": "hidden_ns", "exposed_comm": "exposed_ns",
}  # fmt: skip


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return ddptrace_says("analyze", *args)


@pytest.fixture(scope="module")
def analyze(tmp_path_factory: pytest.TempPathFactory) -> Analyze:
    """The JSON that the command prints, with what it writes kept out of the traces' folder; of each trace once."""

    @functools.cache
    def analyzed(*paths: object) -> Json:
        done = run(*paths, "--json", "--output", tmp_path_factory.mktemp("analysis"))
        assert done.returncode == 0, done.stderr
        result: Json = json.loads(done.stdout)
        return result

    return analyzed


def codes(result: Json) -> set[str]:
    return {finding["code"] for finding in result["findings"]}


def nanoseconds(expected: Json) -> Json:
    """The expected µs, which have three decimals, as the integers that they are."""
    exact = {ours: round(expected[name] * 1000) for name, ours in NAMES.items()}
    return exact | {"overlap_ratio": exact["hidden_ns"] / exact["comm_ns"] if exact["comm_ns"] else None}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_number_of_both_populations_is_exact_to_the_nanosecond(
    folder: str, shared_traces: Path, analyze: Analyze
) -> None:
    every = json.loads((shared_traces / "expected.json").read_text())
    expected = {Path(file).name: one for file, one in every.items() if Path(file).parent.name == folder}
    ranks = {rank["file"]: rank for rank in analyze(shared_traces / folder)["ranks"]}
    assert ranks.keys() == expected.keys() and expected
    for file, one in expected.items():
        for name in ("rank", "gpu_events", "gpu_events_with_launch"):
            assert ranks[file][name] == one[name], file
        for population in ("all", "with_launch"):
            assert ranks[file][population] == nanoseconds(one[population]), (file, population)


def test_the_eight_collectives_of_each_rank_are_matched_across_all_ranks(shared_traces: Path, analyze: Analyze) -> None:
    result = analyze(shared_traces / "dlrm-8ranks")
    assert [match["ranks"] for match in result["matches"]] == [list(range(8))] * 8
    ops = [match["op"] for match in result["matches"]]
    assert sorted(ops) == ["all_reduce"] * 3 + ["all_to_all"] * 5
    for rank in range(8):
        mine = [row for row in result["collectives"] if row["rank"] == rank]
        assert [row["match"] for row in mine] == [match["match"] for match in result["matches"]]
        assert all(row["nbytes"] for row in mine if row["op"] == "all_reduce")
        assert {row["identity"] for row in mine} == {"annotation"}
    for match in result["matches"]:  # recorded: ranks end a collective together and start it apart
        assert match["last_end_at_ns"] - match["first_end_at_ns"] < 100_000


def test_matching_traces_whose_events_were_sampled_is_refused_with_a_finding(
    shared_traces: Path, analyze: Analyze
) -> None:
    result = analyze(shared_traces / "sampled-2of128")
    assert result["matches"] == [] and "match-refused" in codes(result)
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]


def test_buckets_of_a_foreign_ddp_trace_are_told_by_order_and_say_so(shared_traces: Path, analyze: Analyze) -> None:
    result = analyze(shared_traces / "ddp-a100")
    assert {row["identity"] for row in result["buckets"]} == {"order"}
    by_step = {step["step"]: [] for step in result["steps"]}
    for row in result["buckets"]:
        by_step[row["step"]].append((row["index"], row["nbytes"]))
    assert sorted(by_step) == [4, 5, 6]
    assert all([index for index, _ in rows] == list(range(len(rows))) for rows in by_step.values()), by_step
    for step in result["steps"]:
        parts = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
        assert sum(step[part] for part in parts) == step["window_ns"] > 0
        charged = [row["exposed_charged_ns"] for row in result["collectives"] if row["step"] == step["step"]]
        assert sum(charged) == step["exposed_comm_ns"]


def odd_files() -> list[str]:
    return [
        "bare_list_2021.json.gz", "cpu_only_gloo_rank34.pt.trace.json.gz", "cuda_event_sync.json.gz",
        "distributed_info_not_found.json.gz", "mi250_minitoy_train_ROCm6_2_kineto.json.gz",
        "rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz", "rank_non_gpu.json.gz", "rank_not_found.json.gz",
        "triton_example.json.gz",
    ]  # fmt: skip


@pytest.mark.parametrize("file", odd_files())
def test_an_odd_file_gives_numbers_or_a_clear_finding(file: str, shared_traces: Path, analyze: Analyze) -> None:
    result = analyze(shared_traces / "odd" / file)
    (rank,) = result["ranks"]
    assert rank["file"] == file
    told = [finding for finding in result["findings"] if finding["severity"] in ("warning", "error")]
    assert rank["all"] is not None or any(step["comm_ns"] for step in result["steps"]) or told
    for finding in result["findings"]:
        assert "\n" not in finding["message"] and len(finding["message"]) < 400


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("odd/cpu_only_gloo_rank34.pt.trace.json.gz", 34),
        ("odd/rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz", 70),
        ("old-format/control.json.gz", 3),
    ],
)
def test_the_rank_is_what_the_file_or_its_name_says(
    file: str, rank: int, shared_traces: Path, analyze: Analyze
) -> None:
    assert [one["rank"] for one in analyze(shared_traces / file)["ranks"]] == [rank]


def test_all_odd_files_together_are_told_apart(shared_traces: Path, analyze: Analyze) -> None:
    result = analyze(shared_traces / "odd")
    assert sorted(rank["file"] for rank in result["ranks"]) == sorted(odd_files())
    assert len({rank["rank"] for rank in result["ranks"]}) == len(odd_files())
    assert {"rank-unknown", "rank-claimed-twice"} & codes(result)


def test_files_and_globs_are_taken_as_folders_are(shared_traces: Path, analyze: Analyze) -> None:
    folder = shared_traces / "dlrm-8ranks"
    files = sorted(folder.glob("*.json.gz"))
    assert analyze(*files)["ranks"] == analyze(folder)["ranks"] == analyze(folder / "worker*.json.gz")["ranks"]


def test_what_was_read_once_is_read_from_the_cache_and_a_damaged_cache_is_not_believed(
    shared_traces: Path, tmp_path: Path
) -> None:
    def printed() -> str:
        done = run(shared_traces / "ddp-a100", "--json", "--output", tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = printed()
    (kept,) = (tmp_path / "cache").iterdir()
    written = kept.stat().st_mtime_ns
    assert printed() == first and kept.stat().st_mtime_ns == written
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 0xFF
    kept.write_bytes(content)
    assert printed() == first


def test_a_trace_that_has_changed_is_read_again(shared_traces: Path, tmp_path: Path) -> None:
    trace = tmp_path / "rank0.json"
    whole = gzip.decompress((shared_traces / "ddp-a100" / "nccl_data.json.gz").read_bytes())
    trace.write_bytes(whole)
    before = json.loads(run(tmp_path, "--json").stdout)
    content = json.loads(whole)
    content["traceEvents"] = [event for event in content["traceEvents"] if event.get("cat") != "gpu_memset"]
    trace.write_text(json.dumps(content))
    after = json.loads(run(tmp_path, "--json").stdout)
    assert before["ranks"][0]["gpu_events"] - after["ranks"][0]["gpu_events"] == 114


def test_an_empty_folder_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and str(tmp_path) in done.stderr


def test_a_folder_that_cannot_be_written_to_still_gives_its_numbers(shared_traces: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    done = run(shared_traces / "ddp-a100", "--output", blocked / "analysis")
    assert done.returncode == 1 and "Cannot write to" in done.stderr and "rank" in done.stdout


def test_a_truncated_file_beside_whole_ones_costs_a_finding(shared_traces: Path, tmp_path: Path) -> None:
    for file in sorted((shared_traces / "dlrm-8ranks").glob("worker[01]*")):
        shutil.copy(file, tmp_path)
    cut = sorted(tmp_path.glob("worker1*"))[0]
    cut.write_bytes(cut.read_bytes()[:30_000])
    done = run(tmp_path, "--json")
    result = json.loads(done.stdout)
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    damaged = [finding for finding in result["findings"] if finding["code"] == "trace-damaged"]
    assert len(damaged) == 1 and "worker1" in damaged[0]["where"] + damaged[0]["message"]
    assert 0 < result["ranks"][1]["gpu_events"] < 326
