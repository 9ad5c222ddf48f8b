"""`ddptrace nccl`: logs and files of NCCL Inspector exactly as NCCL's own documentation shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign_files import kernel, launch, op, said, write

import ddptrace
from tests.command_line import ddptrace_says

LOG = """\
node-01:1897505:1897517 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels
node-01:631871:631871 [0] NCCL INFO AllReduce: 33554432 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..31}
node-01:631871:631871 [0] NCCL INFO AllReduce: 33554432 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..31}
node-01:631871:631871 [0] NCCL INFO AllReduce: 33554432 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..15}
node-01:631871:631871 [0] NCCL INFO AllGather [Symmetric]: 4096 Bytes -> Kernel AllGather_LL nchannels 8 nthreads 512
step 3 loss 0.12 NCCL INFO AllReduce: many Bytes -> Algo
"""


def inspected(**told: Any) -> str:
    """One line, as the Inspector's documentation has it."""
    header = {"id": "0x7f8c496ae9f661", "comm_name": "unknown", "rank": 2, "n_ranks": 8, "nnodes": 1}
    metadata = {
        "inspector_output_format_version": "v4.0",
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1748030377748202,
        "hostname": "example-hostname",
        "pid": 1639453,
    }
    perf = {
        "coll": "AllReduce",
        "coll_sn": 1407,
        "coll_msg_size_bytes": 33554432,
        "coll_exec_time_us": 200,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 167.77216,
        "coll_busbw_gbs": 293.60128,
    }
    return json.dumps({"header": header, "metadata": metadata, "coll_perf": perf | told}, separators=(",", ":")) + "\n"


def table(*arguments: object) -> list[dict[str, Any]]:
    done = ddptrace_says("nccl", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_logs_and_the_inspector_stand_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "nccl_node-01_631871.log").write_text(LOG)
    (tmp_path / "node-01-pid631871.log").write_text(
        inspected() + inspected(coll_exec_time_us=400, coll_busbw_gbs=147.0)
    )
    gathered, ring, tree = table(tmp_path)
    assert (gathered["function"], gathered["nbytes"], gathered["channels"]) == ("AllGather", 4096, 8)
    assert gathered["algorithm"] == "Symmetric AllGather_LL" and gathered["mean_ns"] is gathered["protocol"] is None
    assert (ring["algorithm"], ring["protocol"], ring["channels"], ring["chosen"]) == ("RING", "SIMPLE", 32, 2)
    assert (tree["algorithm"], tree["protocol"], tree["channels"], tree["chosen"]) == ("TREE", "LL128", 16, 1)
    assert (ring["timed"], ring["ranks"], ring["mean_ns"], ring["timing_source"]) == (2, 8, 300_000, "kernel_gpu")
    assert ring["busbw_bytes_per_s"] == pytest.approx((293.60128e9 + 147e9) / 2)


def test_messages_and_verbose_records_count_too(tmp_path: Path) -> None:
    sent = json.loads(inspected())
    told = {f"p2p{name.removeprefix('coll')}": value for name, value in sent.pop("coll_perf").items()}
    sent["p2p_perf"] = told | {"p2p": "Send", "p2p_peer": 3}
    verbose = inspected(event_trace_sn={"coll_start_sn": 1, "kernel_events": [{"channel_id": 0, "kernel_start_sn": 3}]})
    (tmp_path / "a.log").write_text(json.dumps(sent) + "\n" + verbose)
    assert [(row["function"], row["timed"], row["algorithm"]) for row in table(tmp_path)] == [
        ("AllReduce", 1, None),
        ("Send", 1, None),
    ]


def gathering(folder: Path) -> Path:
    """A profiler file of one all-gather."""
    args = {"Collective name": "_allgather_base", "Group size": 4, "dtype": "Float", "In msg nelems": 1024}
    gather = kernel("ncclDevKernel_AllGather", 1, 10, 20, **args, **{"Out msg nelems": 4096})
    events = [said("ProfilerStep#1", 0, 50), op("aten::mm", 1, 5), launch(1, 6, 7), gather]
    return write(folder / "rank-0.json", events)


def test_the_bandwidth_of_a_run_stands_beside(tmp_path: Path) -> None:
    run = gathering(tmp_path / "run")
    (tmp_path / "nccl.log").write_text(LOG)
    by_function = {row["function"]: row for row in table(tmp_path / "nccl.log", "--run", run)}
    assert by_function["AllGather"]["run_busbw_bytes_per_s"] == pytest.approx(16384 / 10e-6 * 3 / 4)
    assert by_function["AllReduce"]["run_busbw_bytes_per_s"] is None


def test_the_terminal_says_what_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "nccl.log").write_text(LOG)
    said_ = ddptrace_says("nccl", tmp_path).stdout
    line = next(line for line in said_.splitlines() if "TREE" in line)
    assert line.split() == ["AllReduce", "33.6", "MB", "TREE", "LL128", "16", "1", "-", "-", "-"]
    assert "one rank's part" in said_


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"header":{}}\n',
        '{"header":{"rank":1},"coll_perf":{"coll":5}}\n',
        "\x00\xff" * 50,
        LOG.splitlines()[0],
    ],
)
def test_what_tells_nothing_gets_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "\x1b[31modd.log").write_text(text, errors="surrogateescape")
    done = ddptrace_says("nccl", tmp_path / "\x1b[31modd.log")
    assert done.returncode == 1 and "tells nothing of NCCL's collectives" in done.stderr
    assert "\x1b" not in done.stderr and "Traceback" not in done.stderr


def test_damaged_and_odd_lines_cost_only_themselves(tmp_path: Path) -> None:
    cut = inspected()[:-40]
    nonsense = inspected(coll_exec_time_us=-5) + inspected(coll_msg_size_bytes=2**80) + inspected(coll="\x1b[2J")
    (tmp_path / "a.log").write_text(inspected() + nonsense + inspected(coll_busbw_gbs=float("nan")) + cut)
    (tmp_path / "b.log").write_text(LOG.splitlines()[1].replace("{0..31}", "{3..1}") + "\r\n")
    assert [row["channels"] for row in table(tmp_path / "b.log")] == [None]
    done = ddptrace_says("nccl", tmp_path)
    assert done.returncode == 0 and "\x1b" not in done.stdout and "Traceback" not in done.stderr
    assert [row["timed"] for row in table(tmp_path) if row["function"] == "AllReduce"] == [1]


def test_logs_in_the_folder_of_a_run_are_shown_with_the_run(tmp_path: Path) -> None:
    gathering(tmp_path)
    for folder in ("nccl", "analysis", ".hidden"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "node-01-631871.log").write_text(LOG + inspected())
    (tmp_path / "train.log").write_text("step 3 loss 0.12\n")
    result = ddptrace.analyze(tmp_path)
    rows = {(row.function, row.algorithm): row for row in result.nccl}
    assert len(rows) == 3 and rows["AllReduce", "RING"].chosen == 2 and rows["AllReduce", "RING"].timed == 1
    assert rows["AllGather", "Symmetric AllGather_LL"].run_busbw_bytes_per_s == pytest.approx(16384 / 10e-6 * 3 / 4)
    assert result.to_json_dict()["nccl"][0]["function"] == "AllGather"
    assert "nccl-log-left-out" not in {finding.code for finding in result.findings}
    done = ddptrace_says("analyze", tmp_path)
    line = next(line for line in done.stdout.splitlines() if "TREE" in line)
    assert line.split() == ["AllReduce", "33.6", "MB", "TREE", "LL128", "16", "1", "1", "0.20", "294", "GB/s", "-"]
    report = (tmp_path / "analysis" / "report.html").read_text()
    assert "How NCCL carried out collectives" in report and "LL128" in report


def test_a_run_without_such_logs_has_no_such_table(tmp_path: Path) -> None:
    gathering(tmp_path)
    (tmp_path / "train.log").write_text("step 3 loss 0.12\n")
    (tmp_path / "pipe.log").symlink_to("/dev/zero")
    done = ddptrace_says("analyze", tmp_path, "--no-trace")
    assert done.returncode == 0 and "How NCCL" not in done.stdout
    assert "How NCCL" not in (tmp_path / "analysis" / "report.html").read_text()


def test_logs_that_are_too_large_to_be_read_with_the_run_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering(tmp_path)
    for number in range(3):
        (tmp_path / f"node-{number}.log").write_text(inspected())
    monkeypatch.setattr("ddptrace.load.nccl_files.MOST_NBYTES", 2 * len(inspected()))
    result = ddptrace.analyze(tmp_path)
    assert [row.timed for row in result.nccl] == [2]
    (finding,) = (finding for finding in result.findings if finding.code == "nccl-log-left-out")
    assert "node-2.log" in finding.message and "node-1.log" not in finding.message
