"""`ddptrace trim`: smaller profiler files say of their steps what the whole ones say, and open in Perfetto."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from foreign_files import event, kernel, launch, op, said, write

from ddptrace.analysis.result import Result
from ddptrace.analyzer import analyze
from ddptrace.trim.trim import find_files
from tests import command_line, perfetto
from tests.conftest import Record

TABLES = ("steps", "phases", "buckets", "collectives", "streams", "launches", "idle", "copies", "units")
COUNTED = ("seq", "seqs", "ordinal", "match")
"""Columns that number the rows of a file."""


def rows(result: Result, steps: Sequence[int], renumbered: int = 0) -> list[str]:
    """All rows of these steps as text, with instants on the Unix clock. `renumbered`: added to each step's number."""
    return sorted(
        f"{table} {json.dumps(row | {'step': row['step'] + renumbered}, default=str)}"
        for table in TABLES
        for row in map(_row, getattr(result, table), [result.zero_unix_ns] * len(getattr(result, table)))
        if row["step"] is not None and row["step"] + renumbered in steps
    )


def _row(row: Any, zero_unix_ns: int) -> dict[str, Any]:
    columns = {name: value for name, value in dataclasses.asdict(row).items() if name not in COUNTED}
    at = {
        name: value + zero_unix_ns for name, value in columns.items() if name.endswith("_at_ns") and value is not None
    }
    return columns | at


def ddptrace_says(*arguments: str, code: int = 0) -> str:
    done = command_line.ddptrace_says(*arguments)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stdout if code == 0 else done.stderr


def trimmed(path: Path, *arguments: str) -> tuple[Path, str]:
    done = ddptrace_says("trim", str(path), *arguments)
    return Path(done.split(": ")[0]), done


@pytest.mark.parametrize(
    ("traces", "steps"),
    [
        ("ddp-a100", range(5, 7)),
        ("dlrm-8ranks", range(10, 11)),
        ("judged/8ranks-zero-h100/Baseline - 12-11 - e049e-rank0-chrome-trace.json.gz", range(11, 12)),
        ("judged/dlrm-blocked-copies", range(551, 552)),
        ("odd/cpu_only_gloo_rank34.pt.trace.json.gz", range(552, 554)),
        ("odd/bare_list_2021.json.gz", range(5, 6)),
    ],
)
def test_real_files_say_the_same_of_their_steps(tmp_path: Path, shared_traces: Path, traces: str, steps: range) -> None:
    source = shared_traces / traces
    place = tmp_path / source.name
    said = ddptrace_says("trim", str(source), "--steps", f"{steps[0]}..{steps[-1]}", "-o", str(place))
    assert f"step{'s' * (len(steps) > 1)} {steps[0]}" in said and "left out: " in said
    whole, part = analyze(find_files(source)), analyze(find_files(place))
    assert rows(part, steps) == rows(whole, steps)
    assert {row.step for row in part.steps} <= {steps[0] - 1, *steps}


def test_perfetto_opens_it_and_shows_every_slice(tmp_path: Path, shared_traces: Path) -> None:
    place = tmp_path / "part.json"
    ddptrace_says("trim", str(shared_traces / "ddp-a100" / "nccl_data.json.gz"), "--steps", "5", "-o", str(place))
    phases = [one["ph"] for one in kept(place)]
    shown = perfetto.ask(place, slices="select count(*) from slice", flows="select count(*) from flow")
    assert shown["slices"][0][0] >= phases.count("X") > 10_000 and shown["flows"][0][0] == phases.count("f") > 1000


def test_a_recorded_run_becomes_plain_traces(tmp_path: Path, record: Record) -> None:
    """Its steps are those that ddptrace counts; in the file, the profiler's own numbers stay."""
    run = record(tmp_path / "run", "ddp.py", "--profile")
    profiled = sorted({row.step for row in analyze(run).steps if row.profiled})
    whole = analyze(find_files(run))
    steps = sorted({row.step for row in whole.steps})
    place, told = trimmed(run, "--steps", str(profiled[1]))
    assert place == tmp_path / "run.trimmed" and "the files have no records of ddptrace" in told
    assert rows(analyze(place), steps[1:2]) == rows(whole, steps[1:2]) != []


def made(folder: Path, name: str = "rank-0.json", **file: Any) -> Path:
    """Three steps of 100 us; the device runs 60 us behind the host."""
    events = []
    for step in range(3):
        at = 100 * step + 1000
        events += [
            said(f"ProfilerStep#{step + 7}", at, at + 98),
            op("aten::mm", at + 5, at + 20),
            launch(step + 1, at + 10, at + 15),
            kernel("gemm", step + 1, at + 60, at + 150),
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": step + 1, "pid": 1, "tid": 1, "ts": at + 10},
            {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": step + 1, "pid": 0, "tid": 7, "ts": at + 60, "bp": "e"},
            event("from_tomorrow", "unknown", 9, at + 1, at + 2, colour="green"),
        ]
    return write(folder / name, events, **file)


def kept(path: Path) -> Iterator[dict[str, Any]]:
    content = json.loads(path.read_bytes())
    yield from content["traceEvents"] if isinstance(content, dict) else content


def test_the_events_of_the_steps_stay_as_they_were(tmp_path: Path) -> None:
    source = made(tmp_path, schemaVersion=1, baseTimeNanoseconds=10**18, distributedInfo={"rank": 0, "tomorrow": 3})
    before = source.read_bytes()
    place, said = trimmed(source, "--steps", "9")
    assert place == tmp_path / "rank-0.trimmed.json" and source.read_bytes() == before
    assert "step 9 of 1 rank" in said and "step 8 came along, because step 9 begins where its work ends" in said
    content = json.loads(place.read_bytes())
    assert content["distributedInfo"] == {"rank": 0, "tomorrow": 3} and content["ddptraceTrim"]["steps"] == [8, 9]
    names = [one["name"] for one in kept(place)]
    assert names.count("gemm") == 3 and names.count("aten::mm") == 2  # of step 7 its work, which ends where 8 begins
    assert [one["id"] for one in kept(place) if one["ph"] == "f"] == [1, 2, 3]
    assert [one["args"] for one in kept(place) if one["name"] == "unknown"] == [{"colour": "green"}] * 2
    assert all(one in list(kept(source)) for one in kept(place))


def test_an_arrow_without_its_slice_goes(tmp_path: Path) -> None:
    place, _ = trimmed(made(tmp_path), "--steps", "7")
    assert [one["id"] for one in kept(place) if one["ph"] in "sf"] == [1, 1]
    assert len(perfetto.ask(place, flows="select * from flow")["flows"]) == 1


def test_a_file_cut_short_becomes_whole(tmp_path: Path) -> None:
    source = made(tmp_path)
    source.write_bytes(source.read_bytes()[:-300])
    place, told = trimmed(source, "--steps", "7..8")
    assert "cut short after" in told
    assert {one["name"] for one in kept(place)} >= {"ProfilerStep#7", "ProfilerStep#8"}


def test_around_a_bucket_is_the_step_that_exposes_it_most(tmp_path: Path, shared_traces: Path) -> None:
    source = shared_traces / "ddp-a100"
    buckets = [row for row in analyze(source).buckets if row.index == 2]
    chosen = max(buckets, key=lambda row: row.exposed_ns or 0)
    said = ddptrace_says("trim", str(source), "--around", "bucket", "2", "-o", str(tmp_path / "out"))
    assert f"step {chosen.step} of 1 rank" in said
    assert "its buckets are 0 to 4" in ddptrace_says(
        "trim", str(source), "--around", "bucket", "7", "-o", str(tmp_path / "x"), code=1
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "20"], "has no step 20: it has steps 7, 8 and 9"),
        (["--steps", "9..7"], "'9..7' is no range of steps; give one as 10, or several as 10..12"),
        (["--steps", "-1"], "'-1' is no range of steps"),
        ([], "give either --steps 10..12 or --around bucket 7"),
        (["--steps", "7", "--around", "bucket", "1"], "give either --steps 10..12 or --around bucket 7"),
        (["--around", "bucket", "1"], "has no bucket 1 in a step: it shows no gradient buckets"),
    ],
)
def test_mistakes_get_a_sentence_and_leave_nothing(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    source = made(tmp_path)
    code = 2 if "has no" not in sentence else 1
    assert sentence in ddptrace_says("trim", str(source), *arguments, code=code)
    assert list(tmp_path.iterdir()) == [source]


def test_what_exists_is_not_written_over(tmp_path: Path) -> None:
    source = made(tmp_path)
    place, _ = trimmed(source, "--steps", "7")
    before = place.read_bytes()
    assert f"{place} exists: remove it, or name another place" in ddptrace_says(
        "trim", str(source), "--steps", "8", code=1
    )
    assert place.read_bytes() == before


def test_packed_files_stay_packed_and_ranks_without_the_steps_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    for rank in range(2):
        plain = made(folder, f"rank-{rank}.json")
        (folder / f"rank-{rank}.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    write(folder / "rank-2.json", [said("ProfilerStep#1", 1, 5), op("aten::mm", 2, 3)])
    place, said_ = trimmed(folder, "--steps", "8")
    assert sorted(one.name for one in place.iterdir()) == ["rank-0.json.gz", "rank-1.json.gz"]
    assert "without these steps: rank 2" in said_ and "1 file without these steps: rank-2.json" in said_
    assert {row.rank for row in analyze(place).steps} == {0, 1}


def test_windows_without_the_steps_are_left_out(tmp_path: Path) -> None:
    names = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "python"}}
    for window in range(2):
        at = 10_000 * window
        step = said(f"ProfilerStep#{10 * window + 1}", at, at + 50)
        write(tmp_path / "all" / f"rank-0-{window}.json", [names, step, op("aten::mm", at + 5, at + 9)])
    place, told = trimmed(tmp_path / "all", "--steps", "11")
    assert [one.name for one in place.iterdir()] == ["rank-0-1.json"] and "rank-0-0.json" in told
