"""Dumps of torch's Flight Recorder as they are read: names of files, versions, fields that a version lacks, frames."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from ddptrace.errors import RunDirectoryError
from ddptrace.load.diagnosis.tables import JobState, RankState
from ddptrace.load.flight_recorder.dump import lines_of
from ddptrace.load.flight_recorder.job import find_dumps, read_dumps
from ddptrace.load.flight_recorder.plain_pickle import PickleRefusedError, plain_value
from tests.simulated_job import stopped_by, write, write_json

GROUP = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


def entry(turn: int = 1, op: str = "nccl:all_reduce", **fields: Any) -> dict[str, Any]:
    told = {
        "record_id": turn, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": turn, "p2p_seq_id": 0,
        "op_id": turn, "profiling_name": op, "time_created_ns": 10**18 + turn, "input_sizes": [[3, 2]],
        "input_dtypes": ["Float"], "output_sizes": [[3, 2]], "output_dtypes": ["Float"], "state": "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False,
        "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip
    return told | fields


def dump(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"version": "2.10", "pg_config": GROUP, "pg_status": {}, "entries": list(entries)} | fields


def read(folder: Path, *dumps: dict[str, Any]) -> JobState:
    job = read_dumps(write(dict(enumerate(dumps)), folder))
    assert job is not None
    return job


def rank_of(folder: Path, *entries: dict[str, Any], **fields: Any) -> RankState:
    return read(folder, dump(*entries, **fields)).ranks[0]


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_dump_12", "nccl_trace_rank_12", "trace12", "12", "fr-12.pickle", "comm_12.pkl"])
def test_a_dump_is_found_by_any_name_that_ends_in_its_rank(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(dump(), protocol=2))
    assert find_dumps(tmp_path) == {12: tmp_path / name}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_every_protocol_are_read(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "_dump_0").write_bytes(pickle.dumps(dump(entry()), protocol=protocol))
    job = read_dumps(tmp_path)
    assert job is not None and job.ranks[0].pending is not None


def test_files_beside_the_dumps_are_left_alone(tmp_path: Path) -> None:
    write({0: dump()}, tmp_path)
    (tmp_path / "fault_injection.log").write_text("Rank 1")
    (tmp_path / "core.4711").write_bytes(b"\x7fELF")
    (tmp_path / "kineto-1.json").write_text('{"schemaVersion": 1, "cuda_runtime_version": 12}')
    assert list(find_dumps(tmp_path)) == [0]


def test_dumps_of_each_host_in_a_folder_of_its_own_are_one_job(tmp_path: Path) -> None:
    for rank in range(3):
        write({rank: dump()}, tmp_path / f"host{rank}")
    assert list(find_dumps(tmp_path)) == [0, 1, 2]


def test_of_a_pickle_and_a_json_of_one_rank_the_pickle_is_read(tmp_path: Path) -> None:
    write({3: dump()}, tmp_path, "trace_")
    write_json({3: dump()}, tmp_path)
    assert find_dumps(tmp_path) == {3: tmp_path / "trace_3"}


@pytest.mark.parametrize("other", ["other_0", "host/nccl_trace_rank_0"])
def test_dumps_of_two_jobs_are_refused(tmp_path: Path, other: str) -> None:
    folder = tmp_path if "/" not in other else tmp_path / "first"
    write({0: dump()}, folder)
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).write_bytes(pickle.dumps(dump()))
    with pytest.raises(RunDirectoryError, match="give a folder with the dumps of one job"):
        find_dumps(tmp_path)


def test_a_folder_without_dumps_has_none(tmp_path: Path) -> None:
    assert read_dumps(tmp_path) is None and read_dumps(tmp_path / "nowhere") is None


# Fields ---------------------------------------------------------------------------------------------------------------


def test_a_call_is_told_in_the_words_of_our_own_records(tmp_path: Path) -> None:
    pending = rank_of(tmp_path, entry(7, "nccl:_all_gather_base", output_sizes=[[6, 2]])).pending
    assert pending is not None
    told = (pending.op, pending.turn, pending.nbytes, pending.dtype, pending.done)
    assert told == ("all_gather_into_tensor", 7, 48, "float32", False)


def test_the_first_call_that_has_not_ended_is_what_a_rank_waits_in(tmp_path: Path) -> None:
    ended = entry(1, state="completed", time_discovered_completed_ns=5)
    pending = rank_of(tmp_path, ended, entry(2), entry(3)).pending
    assert pending is not None and pending.turn == 2


def test_of_gloo_only_retired_tells_that_a_call_has_ended(tmp_path: Path) -> None:
    pending = rank_of(tmp_path, entry(1, "gloo:all_reduce", retired=True), entry(2, "gloo:all_reduce")).pending
    assert pending is not None and pending.turn == 2


def test_on_nccl_a_retired_call_without_an_end_has_timed_out(tmp_path: Path) -> None:
    pending = rank_of(tmp_path, entry(1, retired=True), entry(2)).pending
    assert pending is not None and pending.turn == 1


def test_the_other_side_of_a_message_is_a_global_rank(tmp_path: Path) -> None:
    config = {"9": {"name": "9", "desc": "PIPELINE", "ranks": "[0, 8, 12]"}}
    message = entry(0, "nccl:recv 1<-2", p2p_seq_id=5, is_p2p=True, process_group=("9", "PIPELINE"))
    pending = rank_of(tmp_path, message, pg_config=config).pending
    assert pending is not None and (pending.op, pending.peer, pending.turn) == ("recv", 12, 5)


def test_what_was_launched_coalesced_ends_with_its_launch(tmp_path: Path) -> None:
    batch = [entry(0, f"nccl:{op}", p2p_seq_id=3, is_p2p=True) for op in ("send 0->1", "recv 0<-1")]
    closing = entry(0, "nccl:coalesced", p2p_seq_id=3, is_p2p=True, state="completed")
    assert rank_of(tmp_path, *batch, closing).pending is None
    assert rank_of(tmp_path, *batch, closing | {"state": "scheduled"}).pending is not None


def test_an_old_dump_without_most_fields_is_read(tmp_path: Path) -> None:
    """As torch 2.3 wrote it."""
    old = {"pg_id": 0, "seq_id": 4, "profiling_name": "nccl:broadcast", "state": "started", "input_sizes": [[2]]}
    rank = rank_of(tmp_path, old, version="2.0", pg_config={})
    assert rank.pending is not None and (rank.pending.op, rank.pending.turn, rank.pending.nbytes) == ("broadcast", 4, 0)


def test_how_far_a_group_is_comes_from_its_status_where_only_calls_that_run_were_dumped(tmp_path: Path) -> None:
    config = GROUP | {"7": {"name": "7", "desc": "TENSOR", "ranks": "[0, 1]"}}
    status = {"0": {"last_enqueued_collective": 11}, "3": {"last_enqueued_collective": 29}}
    rank = rank_of(tmp_path, pg_config=config, pg_status=status)
    assert {group.name: group.turns for group in rank.groups} == {"0": 11, "7": 29}


def test_a_status_that_fits_no_group_is_not_used(tmp_path: Path) -> None:
    status = {"0": {"last_enqueued_collective": 11}, "3": {"last_enqueued_collective": 29}}
    rank = rank_of(tmp_path, pg_status=status)
    assert [group.turns for group in rank.groups] == [-1]


def test_json_and_pickles_tell_the_same_but_for_the_lines(tmp_path: Path) -> None:
    dumps = stopped_by({}).dumps(frames=False)
    pickled, json = read_dumps(write(dumps, tmp_path / "pickles")), read_dumps(write_json(dumps, tmp_path / "json"))
    assert pickled == json and pickled is not None and len(pickled.ranks) == 16


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (dump(version="3.1"), "its format is version 3.1, and only 2.x is known"),
        ({"entries": []}, "it holds no version"),
        (["version"], "it is no dump of a Flight Recorder"),
        (b"\x80\x02}X\x07\x00\x00\x00version", "the pickle ends in the middle"),
        (b'{"version": "2.9", ', "its JSON is damaged"),
        (b"\x80\x02}X\x07\x00\x00\x00versioncos\nsystem\ns.", "the instruction GLOBAL at byte 15"),
    ],
)
def test_a_dump_that_cannot_be_read_is_told_beside_what_the_others_tell(
    tmp_path: Path, content: Any, told: str
) -> None:
    write({0: dump(entry())}, tmp_path)
    data = content if isinstance(content, bytes) else pickle.dumps(content, protocol=2)
    (tmp_path / "nccl_trace_rank_1").write_bytes(data)
    job = read_dumps(tmp_path)
    assert job is not None and [rank.rank for rank in job.ranks] == [0]
    assert told in job.doubts[1][0].message
    (tmp_path / "nccl_trace_rank_0").unlink()
    with pytest.raises(RunDirectoryError, match=r"no dump in .* can be read"):
        read_dumps(tmp_path)


def test_a_pickle_of_plain_values_is_read_as_python_reads_it() -> None:
    value = {"a": [1, -2, 3.5, 2**40, None, True, False], "b": ("x", (), ("y",)), 3: {"é": [[], {}]}, "": "a" * 300}
    for protocol in range(2, 6):  # of protocol 2, bytes are the result of a call
        assert plain_value(pickle.dumps([value, value], protocol=protocol)) == [value, value]
    assert plain_value(pickle.dumps(b"bytes", protocol=4)) == b"bytes"


def test_every_beginning_of_a_pickle_is_refused() -> None:
    data = pickle.dumps(dump(entry(), entry(2)), protocol=4)
    for length in range(len(data)):
        with pytest.raises(PickleRefusedError):
            plain_value(data[:length])


# Lines ----------------------------------------------------------------------------------------------------------------


def frame(filename: str, line: int = 7, name: str = "f") -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


TORCH = "/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"


@pytest.mark.parametrize(
    ("frames", "lines"),
    [
        ([TORCH, "/home/me/proj/train.py"], ("proj/train.py:7 in f", None)),
        (
            [TORCH, "/x/site-packages/megatron/core/p2p.py", "/w/train.py"],
            ("w/train.py:7 in f", "megatron/core/p2p.py:7 in f"),
        ),
        ([TORCH, "/x/site-packages/megatron/core/p2p.py"], ("megatron/core/p2p.py:7 in f", None)),
        (
            ["??", "/src/c10d/Work.cpp", "<string>", "/u/lib/python3.12/threading.py", "/w/a.py"],
            ("w/a.py:7 in f", None),
        ),
        ([TORCH], (None, None)),
        (
            ["/src/torch/_ops.py", "/src/torch/nn/modules/module.py", "/home/me/torch/train.py"],
            ("torch/train.py:7 in f", None),
        ),
    ],
)
def test_the_program_s_line_is_the_innermost_that_is_not_torch_s(
    frames: list[str], lines: tuple[str | None, str | None]
) -> None:
    assert lines_of([frame(file) for file in frames]) == lines


def test_frames_that_are_none_have_no_line() -> None:
    odd: list[Any] = [None, 3, {"filename": 5}, frame("/w/a.py", name="g") | {"line": None}]
    assert lines_of(odd) == ("w/a.py:0 in g", None) and lines_of("text") == (None, None)


def test_a_file_of_another_jobs_rank_is_left_out_and_counts_no_ranks(tmp_path: Path) -> None:
    write(stopped_by({}).dumps(), tmp_path)
    (tmp_path / "nccl_trace_rank_99999").write_bytes((tmp_path / "nccl_trace_rank_0").read_bytes())
    job = read_dumps(tmp_path)
    assert job is not None and job.world_size == 16 and [rank.rank for rank in job.ranks] == list(range(16))
    assert "its name says rank 99999, and its groups are of ranks 0 to 15" in job.doubts[99999][0].message


def test_an_empty_file_beside_dumps_is_one_that_a_rank_began_to_write(tmp_path: Path) -> None:
    write({0: dump(entry())}, tmp_path)
    for name in ("nccl_trace_rank_1", "stdout_1"):
        (tmp_path / name).touch()
    job = read_dumps(tmp_path)
    assert job is not None and list(job.doubts) == [1]
    assert "it is empty" in job.doubts[1][0].message
