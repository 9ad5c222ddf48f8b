"""Fields of today's profiler files: the other end of a message, fields that nobody knows yet, torch's exporter in
Python, and several sessions in one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from foreign_files import Event, event, kernel, launch, load, nccl, op, said, write

from ddptrace.analyzer import analyze
from ddptrace.load.kineto.args import KNOWN
from ddptrace.render.trace.chrome import write_trace
from tests import perfetto
from tests.documents import DOCS

GROUP = {"Process Group Name": "3", "Process Group Description": "pipe", "Group size": 2, "dtype": "Float"}


def message(op_name: str, correlation: int, at: float, **args: object) -> list[Event]:
    said_ = GROUP | {"Collective name": op_name, "In msg nelems": 8, "Out msg nelems": 8} | args
    return [
        launch(correlation, at, at + 1),
        kernel("ncclDevKernel_SendRecv(ncclDevComm*)", correlation, at + 2, at + 5, **said_),
    ]


def test_a_message_tells_its_other_end(tmp_path: Path) -> None:
    events = [
        *message("send", 1, 10, **{"Dst Rank": 5, "Seq": 9}),
        *message("recv", 2, 20, **{"Src Rank": 7, "Seq": 10}),
        *message("send", 3, 30, **{"Src Rank": 7}),  # what a send does not say of itself
        *message("allreduce", 4, 40, **{"Dst Rank": 5}),
    ]
    calls = load(tmp_path, *events).run.calls
    assert [(call.op, call.peer, call.turn) for call in calls] == [
        ("send", 5, None),
        ("recv", 7, None),
        ("send", None, None),
        ("all_reduce", None, None),
    ]


def test_messages_of_two_windows_are_not_paired_by_their_order(tmp_path: Path) -> None:
    for rank, first in ((0, 1), (1, 2)):
        op_name, other = ("recv", "Src Rank") if rank else ("send", "Dst Rank")
        sent = [message(op_name, k, 10 * k, **{other: 1 - rank}) for k in range(first, first + 3)]
        write(tmp_path / f"rank-{rank}.json", [event for events in sent for event in events])
    result = analyze(tmp_path)
    assert {row.peer for row in result.collectives} == {0, 1} and not len(result.messages)
    assert "messages-differ" not in {finding.code for finding in result.findings}


def test_an_unknown_field_is_kept_and_shown_in_perfetto(tmp_path: Path) -> None:
    odd = {"Warp Gate": {"id": 3, "open": True}, "Färbung": "grün\u202e"}
    events = message("allreduce", 1, 10, **odd) + message("allreduce", 2, 20)
    write(tmp_path / "rank-0.json", [said("ProfilerStep#1", 0, 50), op("aten::mm", 1, 5), *events])
    first, second = analyze(tmp_path).collectives
    assert first.unknown_args is not None and json.loads(first.unknown_args) == odd and second.unknown_args is None
    trace = write_trace(analyze(tmp_path), tmp_path / "out.json.gz")
    shown = perfetto.ask(trace, args="select string_value from args where key = 'args.unknown_args'")["args"]
    assert any(json.loads(value) == odd for (value,) in shown)


def test_the_page_lists_every_field_that_is_known() -> None:
    page = (DOCS / "traces.md").read_text()
    assert sorted(name for name in KNOWN if f"`{name}`" not in page) == []


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")], ids=["kineto", "python"])
def test_torchs_exporter_in_python_writes_the_same(tmp_path: Path, separators: tuple[str, str]) -> None:
    """One event a line, no spaces, and a comma behind the last: `export_chrome_trace(use_python_export=True)`."""
    events = [said("ProfilerStep#1", 1, 60), *nccl(1, 10, 20, 40, **GROUP), op("aten::mm", 2, 9)]
    lines = ",\n".join(json.dumps(event, separators=separators) for event in events)
    end = '{"ph":"i","s":"g","name":"Record Window End","pid":"","tid":"","ts":61.000}'
    head = '{\n"schemaVersion": 1,\n"baseTimeNanoseconds": 1000000,\n"traceEvents": [\n'
    path = tmp_path / "trace.json"
    path.write_text(f'{head}{lines},\n{end}\n],\n"traceName": "x"\n}}\n')
    (row,) = analyze(path).collectives
    assert (row.op, row.group, row.step, row.comm_ns) == ("all_reduce", "3", 1, 20_000)


def test_two_sessions_in_one_file_are_one_run(tmp_path: Path) -> None:
    events = []
    for session in range(2):
        at = 1000 * session
        events += [
            event("Trace", f"PyTorch Profiler ({session})", "PyTorch Profiler", at, at + 100, pid="Spans"),
            said("ProfilerStep#1", at, at + 40),
            *nccl(10 * session + 1, at + 5, at + 12, at + 20),
            said("ProfilerStep#2", at + 41, at + 90),
        ]
    run = load(tmp_path, *events).run
    assert [step.ordinal for step in run.steps] == [1, 2, 3, 4] and len(run.calls) == 2
