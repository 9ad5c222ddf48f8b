"""Which file is whose: names, what files say, copies, windows, and what is no trace at all."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from foreign_files import op, write

import ddptrace
from ddptrace.errors import RunDirectoryError
from ddptrace.load.run import open_run
from ddptrace.load.sources import TraceFiles, find_traces, rank_in_name
from ddptrace.render.trace.chrome import write_trace

NAMES = {
    "rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz": 70,
    "rank70.json": 70,
    "rank_0.json": 0,
    "Rank 12 of 128 step 3.json": 12,
    "my run rank 3 step 500.json": 3,
    "worker3_step_12.1694128201557.pt.trace.json.gz": 3,
    "trace_8_rank_1.json": 1,
    "cpu_only_gloo_rank34.pt.trace.json.gz": 34,
    "sampled_rank-1.json.gz": 1,
    "step5_r3.json": 3,
    "r3.json": 3,
    "rank3/trace.json": 3,
    "worker_4/12.json": 4,
    "rank1/rank_2.json": 2,
    "nccl_data.json.gz": None,
    "rank_not_found.json.gz": None,
    "host-7_1234.1694128201557.pt.trace.json": None,
    "rank1694128201557.json": None,
    "frank3.json": None,
    "iter3r5x.json": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_rank_is_read_off_the_name_or_the_folders(name: str) -> None:
    assert rank_in_name(Path("/data/run") / name) == NAMES[name]


def trace(path: Path, at: float = 0, rank: int | None = None, world_size: int | None = None) -> Path:
    info = {"rank": rank, "world_size": world_size}
    return write(path, [op("aten::mm", at, at + 10)], distributedInfo={k: v for k, v in info.items() if v is not None})


def found(files: TraceFiles) -> dict[int, list[str]]:
    return {file.rank: [path.name for path in file.paths] for file in files.files}


def codes(files: TraceFiles) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in files.findings]


def test_ranks_come_sorted_from_what_files_say_before_what_their_names_say(tmp_path: Path) -> None:
    trace(tmp_path / "rank5.json", rank=1, world_size=3)
    trace(tmp_path / "a" / "b" / "rank0.JSON", at=7)
    trace(tmp_path / "x.json", rank=2)
    files = find_traces([tmp_path])
    assert found(files) == {0: ["rank0.JSON"], 1: ["rank5.json"], 2: ["x.json"]}
    assert (files.world_size, files.first_unix_ns, files.findings) == (3, 7000, ())


def test_hidden_files_and_the_analysis_folder_are_passed_over_and_each_file_is_taken_once(tmp_path: Path) -> None:
    own = trace(tmp_path / "rank0.json")
    for other in ("._rank0.json", ".hidden/rank1.json", "analysis/rank2.json", "x/analysis/rank3.json"):
        trace(tmp_path / other)
    (tmp_path / "rank0.txt").write_text("{}")
    files = find_traces([tmp_path, own, tmp_path / "x" / ".." / "rank0.json"])
    assert found(files) == {0: ["rank0.json"]}
    assert files.findings == ()


def test_the_same_trace_plain_and_packed_is_read_once(tmp_path: Path) -> None:
    plain = trace(tmp_path / "rank0.json")
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    files = find_traces([tmp_path])
    assert found(files) == {0: ["rank0.json"], 1: ["rank1.json.gz"]}
    assert codes(files) == [("trace-twice", "info")]
    assert "rank0.json.gz" in files.findings[0].message


def test_what_is_no_trace_is_left_out_in_one_finding_that_names_some(tmp_path: Path) -> None:
    trace(tmp_path / "rank0.json")
    for k in range(7):
        (tmp_path / f"et{k}.pt.trace.json").write_text(json.dumps({"schema": "1.1.1", "nodes": [{"id": 1}]}))
    files = find_traces([tmp_path])
    assert found(files) == {0: ["rank0.json"]}
    (finding,) = files.findings
    assert finding.code == "not-a-trace"
    assert "et0.pt.trace.json is an execution trace" in finding.message
    assert finding.message.endswith("and 2 more")


def test_a_file_that_cannot_be_unpacked_is_told_and_the_others_stand(tmp_path: Path) -> None:
    trace(tmp_path / "rank0.json")
    (tmp_path / "rank1.json.gz").write_bytes(b"\x1f\x8b" + b"\xff" * 40)
    files = find_traces([tmp_path])
    assert found(files) == {0: ["rank0.json"]}
    assert codes(files) == [("trace-unreadable", "error")]


@pytest.mark.parametrize("content", [None, "{}", "[]", "junk", ""])
def test_nothing_to_read_is_refused_in_one_sentence_that_says_what_was_there(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "other.json").write_text(content)
    with pytest.raises(RunDirectoryError, match=r"holds no run of ddptrace.trace and no trace") as refused:
        find_traces([tmp_path])
    assert "\n" not in str(refused.value)
    assert ("other.json" in str(refused.value)) == (content is not None)


@pytest.mark.parametrize("name", ["none.json", "x" * 5000])
def test_a_path_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunDirectoryError, match=re.escape(f"{name} does not exist")):
        open_run([tmp_path / name])


def test_pipes_and_links_that_lead_nowhere_are_not_waited_for(tmp_path: Path) -> None:
    trace(tmp_path / "rank0.json")
    os.mkfifo(tmp_path / "rank1.json")
    (tmp_path / "rank2.json").symlink_to(tmp_path / "rank2.json")
    (tmp_path / "again").symlink_to(tmp_path)
    assert found(find_traces([tmp_path])) == {0: ["rank0.json"]}
    with pytest.raises(RunDirectoryError, match="is neither a file nor a folder"):
        find_traces([tmp_path / "rank1.json"])


def test_files_that_tell_no_rank_get_the_next_free_numbers_and_are_named(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "rank1.json"):
        trace(tmp_path / name)
    files = find_traces([tmp_path])
    assert found(files) == {0: ["a.json"], 1: ["rank1.json"], 2: ["b.json"]}
    assert codes(files) == [("rank-unknown", "warning")]
    assert "a.json as 0, b.json as 2" in files.findings[0].message


def test_the_only_file_that_tells_no_rank_is_shown_as_rank_0_and_as_no_additional_one(tmp_path: Path) -> None:
    trace(tmp_path / "o.json")
    files = find_traces([tmp_path])
    assert found(files) == {0: ["o.json"]}
    assert codes(files) == [("rank-unknown", "warning")]
    assert "o.json is shown as rank 0" in files.findings[0].message
    assert "additional" not in files.findings[0].message


def test_files_of_one_rank_named_alike_at_other_times_are_its_windows_in_time_order(tmp_path: Path) -> None:
    later, first = (trace(tmp_path / f"rank0_step_{k}.json", at=at) for k, at in ((1, 500), (2, 100)))
    other = trace(tmp_path / "rank1_step_1.json", at=100)
    files = find_traces([tmp_path])
    assert found(files) == {0: [first.name, later.name], 1: [other.name]}
    assert (files.findings, files.first_unix_ns) == ((), 100_000)


@pytest.mark.parametrize(
    ("names", "times", "expected"),
    [
        (("run_1.json", "run_2.json"), (100, 100), {0: ["run_1.json"], 1: ["run_2.json"]}),
        (("a.json", "b.json"), (100, 500), {0: ["a.json"], 1: ["b.json"]}),
        (("rank0.json", "rank5.json"), (100, 500), {0: ["rank0.json"], 5: ["rank5.json"]}),
    ],
    ids=["at one time", "named otherwise", "of another rank by name"],
)
def test_two_files_that_say_one_rank_but_cannot_be_its_windows_are_shown_apart(
    tmp_path: Path, names: tuple[str, str], times: tuple[int, int], expected: dict[int, list[str]]
) -> None:
    for name, at in zip(names, times, strict=True):
        trace(tmp_path / name, at=at, rank=0)
    files = find_traces([tmp_path])
    assert found(files) == expected
    assert codes(files) == [("rank-claimed-twice", "warning")]


@pytest.mark.parametrize(("present", "world_size", "severity"), [(3, 4, "warning"), (2, 128, "info")])
def test_missing_ranks_are_told_and_few_of_many_are_a_sample(
    tmp_path: Path, present: int, world_size: int, severity: str
) -> None:
    for rank in range(present):
        trace(tmp_path / f"rank{rank}.json", rank=rank, world_size=world_size)
    files = find_traces([tmp_path])
    assert codes(files) == [("rank-missing", severity)]
    assert f"{world_size - present} of {world_size} ranks" in files.findings[0].message


def test_a_rank_beyond_any_job_is_no_rank(tmp_path: Path) -> None:
    trace(tmp_path / "x.json", rank=2**40, world_size=2**50)
    files = find_traces([tmp_path])
    assert found(files) == {0: ["x.json"]}
    assert codes(files) == [("rank-unknown", "warning")]
    assert files.world_size is None


def run_directory(folder: Path, ranks: int = 2) -> Path:
    for rank in range(ranks):
        trace(folder / f"rank-{rank:05d}" / "kineto-0.json", rank=rank)
        (folder / f"rank-{rank:05d}" / "meta.json").write_text("{}")
    return folder


def refused(*paths: Path) -> str:
    with pytest.raises(RunDirectoryError) as said:
        open_run(paths)
    return str(said.value)


def test_run_directories_below_a_folder_are_named_and_not_merged_as_plain_traces(tmp_path: Path) -> None:
    several = [run_directory(tmp_path / "jobs" / name) for name in "abcd"]
    shown = ", ".join(map(str, several[:3]))
    assert refused(tmp_path) == f"{tmp_path} holds run directories ({shown} …): analyze them one at a time"
    assert refused(several[0], several[1]) == (
        f"the given paths hold run directories ({several[0]}, {several[1]}): analyze them one at a time"
    )
    assert refused(tmp_path / "jobs" / "[ab]").endswith(f"({several[0]}, {several[1]}): analyze them one at a time")


def test_the_attempts_of_a_run_are_no_runs_beside_it(tmp_path: Path) -> None:
    for attempt in ("attempt-0", "attempt-1"):
        run_directory(tmp_path / "run" / attempt)
    assert refused(tmp_path) == f"{tmp_path} holds a run directory ({tmp_path / 'run'}): analyze it alone"


def test_a_run_directory_among_plain_traces_is_told_to_be_analyzed_alone(tmp_path: Path) -> None:
    run, plain = run_directory(tmp_path / "run"), trace(tmp_path / "rank0.json")
    assert refused(run, plain) == f"the given paths hold a run directory ({run}): analyze it alone"
    assert refused(tmp_path) == f"{tmp_path} holds a run directory ({run}): analyze it alone"


def test_one_run_directory_alone_is_a_run_by_name_and_by_pattern(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run")
    assert [open_run([path]).path for path in (run, tmp_path / "r*")] == [run, run]


def test_folders_of_ranks_without_records_of_ours_are_plain_traces(tmp_path: Path) -> None:
    trace(tmp_path / "rank-0" / "a.json")
    for passed_over in ("analysis", ".hidden"):
        run_directory(tmp_path / passed_over)
    assert [source.what.rank for source in open_run([tmp_path]).sources] == [0]


REAL: dict[str, tuple[Any, int | None]] = {
    "dlrm-8ranks": (list(range(8)), 8),
    "ddp-a100": ([0], 2),
    "old-format": ([1, 3], 8),
    "sampled-2of128": ([0, 1], 128),
    "odd": ([0, 1, 2, 3, 4, 5, 6, 34, 70], 300),
}


@pytest.mark.parametrize("folder", REAL)
def test_real_folders_are_sorted_by_rank(shared_traces: Path, folder: str) -> None:
    files = find_traces([shared_traces / folder])
    assert ([file.rank for file in files.files], files.world_size) == REAL[folder]
    if folder == "dlrm-8ranks":
        assert all(path.name.startswith(f"worker{file.rank}_") for file in files.files for path in file.paths)
        assert (files.findings, files.first_unix_ns // 10**9) == ((), 1694128201)


def test_real_windows_of_one_rank_are_one_rank(shared_traces: Path, tmp_path: Path) -> None:
    source = next((shared_traces / "dlrm-8ranks").glob("worker2*"))
    for k, rank in enumerate((2, 0)):
        content = gzip.decompress(source.read_bytes()).replace(b'"ts": 16941282', f'"ts": 16941{k}82'.encode())
        (tmp_path / f"worker2_step_{rank}.pt.trace.json.gz").write_bytes(gzip.compress(content, 1))
    files = find_traces([tmp_path])
    names = ["worker2_step_2.pt.trace.json.gz", "worker2_step_0.pt.trace.json.gz"]
    assert found(files) == {2: names}


def test_what_ddptrace_itself_drew_is_not_read_as_a_trace(shared_traces: Path, tmp_path: Path) -> None:
    for file in sorted((shared_traces / "dlrm-8ranks").glob("worker[01]*")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_trace(ddptrace.analyze(tmp_path, jobs=1), tmp_path / "trace.json.gz")
    found = find_traces([tmp_path])
    assert [file.rank for file in found.files] == [0, 1]
    assert any("ddptrace wrote" in finding.message for finding in found.findings)


def test_a_name_that_is_no_text_is_read_and_shown_escaped(shared_traces: Path, tmp_path: Path) -> None:
    content = (shared_traces / "odd" / "triton_example.json.gz").read_bytes()
    (tmp_path / os.fsdecode(b"one\xff\x1b.json.gz")).write_bytes(content)
    (tmp_path / os.fsdecode(b"two\xff.json")).write_bytes(b"{")
    result = ddptrace.analyze(tmp_path, jobs=1)
    assert result.ranks[0].file == "one\\udcff\\x1b.json.gz"
    assert json.dumps(result.to_json_dict(), ensure_ascii=False).encode()


def test_links_to_folders_are_followed_once_and_a_circle_ends(shared_traces: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "linked").symlink_to(shared_traces / "dlrm-8ranks")
    (tmp_path / "here" / "circle").symlink_to(tmp_path)
    assert len(find_traces([tmp_path / "here"]).files) == 8
