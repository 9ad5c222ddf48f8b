"""What a Kineto file says of itself and of its collectives, and what a file is without reading its events."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ddptrace.errors import DdptraceError, RunDirectoryError
from ddptrace.load.kineto.events import FAR_NS, CollectiveArgs, FileFacts, KinetoEvents
from ddptrace.load.kineto.head import FileHead, identify
from ddptrace.load.kineto.reader import read_kineto

EVENT = {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 7, "tid": 7, "ts": 1, "dur": 2}
EVENT_KEYS = {key: EVENT[key] for key in EVENT if key not in ("ts", "dur")}
BASE_NS = 1790857026000000000


def trace(folder: Path, *events: dict[str, Any], **file: Any) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events} | file))
    return path


def only_collective(read: KinetoEvents) -> CollectiveArgs | None:
    assert set(read.collectives) <= {0}
    return read.collectives.get(0)


SHAPES = [
    ("gloo:all_reduce", [[321271]], ["float"], (1285084, "float")),
    ("nccl:all_reduce", [[3, 4], [5]], ["c10::Half", "c10::Half"], (34, "c10::Half")),
    ("nccl:all_reduce", [[3, 4], [5]], ["c10::Half", "float"], (44, None)),
    ("gloo:barrier", [[]], ["long int"], (8, "long int")),
    ("record_param_comms", [[6], [], []], ["float", "Scalar", ""], (24, "float")),
    ("c10d::alltoall_base_", [[6], [6], []], ["float", "float", ""], None),  # which of them goes in?
    ("c10d::allreduce_", [[], [], []], ["TensorList", "", "Scalar"], None),
    ("record_param_comms", [[[6], [7]], []], ["TensorList", "Scalar"], None),
    ("gloo:all_reduce", [[-1]], ["float"], (None, "float")),
    ("gloo:all_reduce", [[2**40, 2**40]], ["float"], (None, "float")),
    ("gloo:all_reduce", [[3]], ["QInt99"], None),
    ("gloo:all_reduce", [[3]], ["Scalar"], None),
    ("gloo:all_reduce", [[3]], ["UInt64"], (24, "UInt64")),
    ("gloo:all_reduce", [[3]], ["unsigned short"], (6, "unsigned short")),
    ("nccl:all_reduce", [[3]], ["ncclFloat"], (12, "ncclFloat")),
    ("nccl:all_reduce", [[3]], ["float16"], (6, "float16")),
    ("nccl:all_reduce", [[3]], ["torch.float16"], (6, "torch.float16")),
    ("nccl:all_reduce", [[3]], ["Float16"], (6, "Float16")),
    ("nccl:all_reduce", [[3]], ["BFloat16"], (6, "BFloat16")),
    ("nccl:all_reduce", [[3]], ["Float8_e4m3fn"], (3, "Float8_e4m3fn")),
    ("nccl:all_reduce", [[3]], ["c10::complex<double>"], (48, "c10::complex<double>")),
    ("gloo:all_reduce", [[3], [4]], ["float"], None),
    ("gloo:all_reduce", "[3]", 5, None),
    ("aten::mm", [[3]], ["float"], None),
]


@pytest.mark.parametrize(("name", "dims", "types", "said"), SHAPES)
def test_bytes_come_from_shapes_and_types_only_where_those_leave_no_doubt(
    tmp_path: Path, name: str, dims: Any, types: Any, said: tuple[int | None, str | None] | None
) -> None:
    event = EVENT | {"name": name, "args": {"Input Dims": dims, "Input type": types}}
    found = only_collective(read_kineto(trace(tmp_path, event)))
    assert found == (None if said is None else CollectiveArgs(nbytes_in=said[0], dtype=said[1]))


def test_a_kernel_tells_its_collective_in_the_words_of_its_file(tmp_path: Path) -> None:
    args = {
        "Collective name": "_allgather_base", "Process Group Name": "12", "Process Group Description": "tp",
        "Process Group Ranks": "[0, 2, 4]", "Group size": 3, "In msg nelems": 10, "Out msg nelems": 30,
        "dtype": "BFloat16", "Input Dims": [[99]], "Input type": ["float"], "Seq": 17,
    }  # fmt: skip
    read = read_kineto(trace(tmp_path, EVENT | {"cat": "kernel", "name": "ncclDevKernel_Generic", "args": args}))
    assert read.is_collective.tolist() == [True]
    assert only_collective(read) == CollectiveArgs(
        "_allgather_base", "12", "tp", (0, 2, 4), 3, 10, 30, "BFloat16", None, 17
    )


@pytest.mark.parametrize("ranks", ["[0, 1, ...]", "all", "[]", [], [0, -1], [True], 5, None])
def test_ranks_that_are_not_all_named_are_not_told(tmp_path: Path, ranks: Any) -> None:
    args = {"Collective name": "send", "Process Group Ranks": ranks, "Group size": "many", "In msg nelems": -3}
    read = read_kineto(trace(tmp_path, EVENT | {"args": args}))
    assert only_collective(read) == CollectiveArgs("send")


def test_collectives_stand_at_the_place_of_their_event_once_all_are_in_order(tmp_path: Path) -> None:
    sized = [{"args": {"Input Dims": [[n]], "Input type": ["bool"]}, "ts": 100 - n} for n in range(5)]
    events = [EVENT | fields for fields in sized]
    events.insert(2, EVENT | {"ts": "none"})  # left out: those behind it move up
    read = read_kineto(trace(tmp_path, *events))
    assert [read.collectives[at].nbytes_in for at in range(5)] == [4, 3, 2, 1, 0]
    assert read.begin_ns.tolist() == [96000, 97000, 98000, 99000, 100000]


def test_a_file_tells_its_rank_device_host_and_groups(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "0", "backend_config": "cuda:nccl", "ranks": [], "pg_size": 4},  # empty: all ranks
        {"pg_name": "1", "backend_config": "cpu:gloo", "ranks": "[1, 3]"},
        {"pg_name": 2, "ranks": ["x"]},
        "no group",
    ]
    info = {"rank": 3, "world_size": 4, "backend": "nccl", "pg_config": groups}
    file = {"distributedInfo": info, "deviceProperties": [{"name": "A100"}, {"name": "B"}], "host_name": "node7"}
    told = (("0", "cuda:nccl", (0, 1, 2, 3)), ("1", "cpu:gloo", (1, 3)), ("2", "", ()))
    expected = FileFacts(3, 4, "nccl", "A100", "node7", told)
    path = trace(tmp_path, EVENT, **file)
    assert read_kineto(path).facts == expected
    assert identify(path).facts == expected


NOT_SAID = [
    {"distributedInfo": {"rank": "first", "world_size": -1, "backend": ["nccl"], "pg_config": {"a": 1}}},
    {"distributedInfo": [0], "deviceProperties": {"name": "a"}, "host_name": {}},
    {"distributedInfo": None, "deviceProperties": [{"name": ""}], "host_name": ""},
    {"distributedInfo": {"rank": True, "world_size": 2**70}, "deviceProperties": ["A100"]},
]


@pytest.mark.parametrize("file", NOT_SAID)
def test_what_is_of_another_type_is_not_said(tmp_path: Path, file: dict[str, Any]) -> None:
    assert read_kineto(trace(tmp_path, EVENT, **file)).facts == FileFacts()


def test_a_base_that_is_no_number_is_told_as_damage(tmp_path: Path) -> None:
    assert "around its events" in (read_kineto(trace(tmp_path, EVENT, baseTimeNanoseconds="x")).facts.damage or "")


NO_TRACES = {
    "empty": b"",
    "not JSON": b"hello",
    "JSON without traceEvents": b'{"a": []}',
    "an execution trace (it has nodes)": b'{"schema": "1.1", "nodes": [' + b'{"id": 1},' * 200_000,
    "a list without events": b"[1, 2]",
    "JSON whose traceEvents is not a list of events": b'{"traceEvents": 5}',
}


@pytest.mark.parametrize("what", NO_TRACES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_that_is_no_trace_is_called_what_it_is(tmp_path: Path, what: str, pack: Any) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(pack(NO_TRACES[what]))
    assert identify(path) == FileHead(FileFacts(), None, False, what)


def test_a_file_that_cannot_be_opened_or_inflated_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="No such file"):
        identify(tmp_path / "none.json")
    (tmp_path / "bad.gz").write_bytes(gzip.compress(b'{"traceEvents": []}')[:-8] + bytes(8))
    with pytest.raises(RunDirectoryError, match="gzip stream is damaged"):
        identify(tmp_path / "bad.gz")


def test_the_first_event_is_timed_by_the_base_behind_the_events_only_where_asked(tmp_path: Path) -> None:
    info = {"distributedInfo": {"rank": 0}}
    many = [EVENT | {"ts": 5.5 + n, "args": {"odd": [{}], "text": "}], " * 9}} for n in range(30_000)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(info | {"traceEvents": [{"ph": "M", "ts": 1}, *many], "baseTimeNanoseconds": BASE_NS}))
    assert path.stat().st_size > 5 << 20
    assert identify(path).first_unix_ns is None
    assert identify(path, with_time=True).first_unix_ns == BASE_NS + 5500 == read_kineto(path).begin_ns[0]


def test_a_rank_that_is_named_behind_the_events_is_found(tmp_path: Path) -> None:
    path = trace(tmp_path, EVENT, distributedInfo={"rank": 5}, baseTimeNanoseconds=BASE_NS)
    assert identify(path) == FileHead(FileFacts(rank=5), BASE_NS + 1000, True, "")


def test_a_file_without_a_base_counts_from_the_epoch_unless_its_end_is_lost(tmp_path: Path) -> None:
    path = trace(tmp_path, EVENT)
    assert identify(path, with_time=True).first_unix_ns == 1000
    path.write_bytes(path.read_bytes()[:-1])
    assert identify(path, with_time=True).first_unix_ns is None


NO_FIRST = [
    {"ts": 1.8e16}, {"ts": -9e17}, {"ts": 1e18}, {"ts": 4.7e15}, {"ts": "5"}, {"dur": 4.7e15}, {"dur": None},
    {"cat": "Trace"}, {"cat": "gpu_user_annotation"}, {"cat": None}, {"ph": "i"}, {"ph": "M"},
]  # fmt: skip


@pytest.mark.parametrize("fields", NO_FIRST)
@pytest.mark.parametrize("base", [None, BASE_NS])
def test_the_first_event_is_one_that_reading_keeps(tmp_path: Path, fields: dict[str, Any], base: int | None) -> None:
    base_of = {} if base is None else {"baseTimeNanoseconds": base}
    path = trace(tmp_path, EVENT | {"ts": 0} | fields, EVENT | {"ts": 7}, EVENT | {"ts": 3}, **base_of)
    head = identify(path, with_time=True)
    assert head.is_trace and head.first_unix_ns == (base or 0) + 7000
    read = read_kineto(path)
    assert read.begin_ns.tolist() == [(base or 0) + 3000, (base or 0) + 7000]
    assert read.since(head.first_unix_ns).begin_ns.tolist() == [-4000, 0]


def test_a_time_that_only_the_base_takes_beyond_any_clock_is_no_first_one(tmp_path: Path) -> None:
    path = trace(tmp_path, EVENT | {"ts": 4e15}, EVENT | {"ts": 7}, baseTimeNanoseconds=BASE_NS)
    assert identify(path).first_unix_ns == BASE_NS + 7000


def test_a_list_of_timed_things_that_are_no_complete_events_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"ts": 5}, EVENT | {"ph": "i"}]))
    assert identify(path) == FileHead(FileFacts(), None, False, "a list without events")


def test_a_trace_of_nothing_that_is_kept_is_one_without_a_first_event(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([EVENT | {"cat": "Trace"}, EVENT | {"ts": 1e18}]))
    assert identify(path) == FileHead(FileFacts(), None, True, "")


def test_instants_count_from_anywhere_a_clock_can_stand_and_from_nowhere_else(tmp_path: Path) -> None:
    near = FAR_NS - 1000
    path = trace(tmp_path, *({"ts": sign * near // 1000, "dur": 0} | EVENT_KEYS for sign in (-1, 1)))
    read = read_kineto(path)
    assert len(read.begin_ns) == 2
    for zero in (FAR_NS - 1, 1 - FAR_NS):
        shifted = read.since(zero)
        assert shifted.begin_ns.tolist() == shifted.end_ns.tolist() == [at - zero for at in read.begin_ns.tolist()]
    for zero in (FAR_NS, -FAR_NS, 2**64 * 1000):
        with pytest.raises(DdptraceError, match="beyond any clock"):
            read.since(zero)


def test_the_heads_of_real_traces_say_what_reading_them_says(shared_traces: Path) -> None:
    files = [
        *shared_traces.glob("odd/*.gz"),
        *shared_traces.glob("dlrm-8ranks/*.gz"),
        *shared_traces.glob("ddp-a100/*"),
    ]
    assert len(files) > 15
    for file in files:
        head, events = identify(file, with_time=True), read_kineto(file)
        assert head.is_trace and head.facts == events.facts
        assert head.first_unix_ns is not None and head.first_unix_ns in events.begin_ns


def test_real_collectives_carry_the_bytes_and_groups_of_their_files(shared_traces: Path) -> None:
    gloo = read_kineto(shared_traces / "odd" / "cpu_only_gloo_rank34.pt.trace.json.gz")
    assert {said.dtype for said in gloo.collectives.values()} == {"float"}
    assert 321271 * 4 in {said.nbytes_in for said in gloo.collectives.values()}
    nccl = read_kineto(shared_traces / "ddp-a100" / "nccl_data.json.gz")
    kernels = {at: said for at, said in nccl.collectives.items() if nccl.is_collective[at] and nccl.category[at] == 3}
    assert len(kernels) == 21 and {said.ranks for said in kernels.values()} == {(0, 1)}
    assert all("ncclKernel" in nccl.names[nccl.name[at]] for at in kernels)
