"""What can go wrong with a run directory: each time one clear sentence, and nothing lost that was whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ddptrace
from ddptrace.errors import RunDirectoryError
from ddptrace.load.diagnosis.job import read_job
from ddptrace.load.run import read_run
from ddptrace.schema import EVENT_DTYPE, MANIFEST, RECORD_NBYTES, SCHEMA_VERSION, Kind
from tests.launch import PROGRAMS, environment, server, torchrun

STEPS = 6


def codes(path: Path) -> dict[str, str]:
    return {finding.code: finding.message for finding in ddptrace.analyze(path).findings}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run"
    torchrun("ddp.py", path, "--steps", STEPS)
    return path


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy to be spoiled."""
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def train(steps: int = 3) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(ddptrace.RunDirectoryError, match="nowhere does not exist; give a run directory"):
        ddptrace.analyze(tmp_path / "nowhere")


def test_a_directory_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ddptrace.RunDirectoryError, match="holds no run"):
        ddptrace.analyze(tmp_path)


def test_a_directory_that_holds_a_run_is_refused_and_overwritten_only_when_told(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path / "run"):
        train(steps=2)
    with pytest.raises(ddptrace.RunDirectoryError, match=r"already holds a run.*overwrite=True"):
        with ddptrace.trace(tmp_path / "run"):
            pass
    assert len(ddptrace.analyze(tmp_path / "run").steps) == 2
    with ddptrace.trace(tmp_path / "run", overwrite=True):
        train(steps=4)
    assert len(ddptrace.analyze(tmp_path / "run").steps) == 4


@pytest.mark.parametrize("enter_first", [False, True])
def test_a_taken_directory_is_refused_on_every_rank_even_on_one_that_has_no_folder_there(
    enter_first: bool, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with ddptrace.trace(run):
        train()
    before = time.time() - 1  # a rank knows only to a hundredth of a second when it started
    os.utime(run / MANIFEST, (before, before))
    options = ["--enter-first"] if enter_first else []
    argv = [str(PROGRAMS / "ddp.py"), str(run), *options]
    statuses, said = server().statuses(argv, 2, environment(), 60, to_the_end=True)
    assert statuses is not None and all(statuses)
    assert said.count("ddptrace.errors.RunDirectoryError: ") == 2, said
    if not enter_first:
        assert not (run / "rank-00001").exists()
    assert len(ddptrace.analyze(run).ranks) == 1


def test_training_without_any_process_group_is_one_rank_with_a_finding(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path / "run"):
        train()
    result = ddptrace.analyze(tmp_path / "run")
    assert [row.rank for row in result.ranks] == [0]
    assert len(result.steps) == 3
    assert "single-rank" in {finding.code for finding in result.findings}


def test_a_trace_entered_before_the_process_group_learns_its_rank_later(tmp_path: Path) -> None:
    torchrun("ddp.py", tmp_path / "run", "--enter-first")
    result = ddptrace.analyze(tmp_path / "run")
    assert [row.rank for row in result.ranks] == [0, 1]
    assert result.world_size == 2
    assert "other-run" not in {finding.code for finding in result.findings}


def test_a_path_that_cannot_be_a_directory_is_told_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ddptrace.RunDirectoryError, match=r"cannot record into .*file"):
        with ddptrace.trace(tmp_path / "file" / "run"):
            pass


def test_profile_that_is_no_schedule_is_told_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ddptrace.TraceStateError, match=r"profile=3 is not a schedule; give .*torch.profiler.schedule"):
        ddptrace.trace(tmp_path / "run", profile=3)  # type: ignore[arg-type]


def test_a_rank_killed_in_a_step_leaves_its_last_whole_step_and_is_named(tmp_path: Path) -> None:
    run, flag = tmp_path / "run", tmp_path / "run.flag"
    argv = [str(PROGRAMS / "ddp.py"), str(run), "--pause-at", "4"]
    with server().started(argv, 2, environment(), to_the_end=True) as training:
        deadline = time.monotonic() + 60
        while not flag.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(json.loads((run / "rank-00001" / "meta.json").read_text())["pid"], signal.SIGKILL)
        assert training.statuses(60) is not None
    result = ddptrace.analyze(run)
    assert [step.step for step in result.steps if step.rank == 1] == [0, 1, 2, 3]
    died = [finding for finding in result.findings if finding.code == "process-died"]
    assert any("rank 1" in finding.where for finding in died)
    assert len([bucket for bucket in result.buckets if bucket.rank == 1 and bucket.step == 3]) > 1


def test_a_torn_record_is_dropped_and_said(run: Path) -> None:
    segment = run / "rank-00001" / "records-00000.bin"
    data = bytearray(segment.read_bytes())
    torn = len(data) // RECORD_NBYTES - 10
    data[torn * RECORD_NBYTES + 8 : (torn + 1) * RECORD_NBYTES] = bytes(RECORD_NBYTES - 8)
    segment.write_bytes(data)
    found = codes(run)
    assert "1 records were torn" in found["records-torn"]
    assert "was changed after it was written" in found["records-damaged"]
    assert len(read_run(run).ranks[1].steps) >= STEPS - 1


def test_a_segment_cut_in_the_middle_of_a_record_keeps_what_is_before(run: Path) -> None:
    segment = run / "rank-00000" / "records-00000.bin"
    data = segment.read_bytes()
    segment.write_bytes(data[: len(data) * 3 // 4 // RECORD_NBYTES * RECORD_NBYTES + 17])
    found = codes(run)
    assert "ends in the middle of a record" in found["records-damaged"]
    assert "process-died" in found
    assert 0 < len(read_run(run).ranks[0].steps) < STEPS


@pytest.mark.parametrize("seed", range(30))
def test_bytes_overwritten_anywhere_give_tables_and_a_finding(run: Path, seed: int) -> None:
    segment = run / "rank-00000" / "records-00000.bin"
    data = np.frombuffer(segment.read_bytes(), np.uint8).copy()
    random = np.random.default_rng(seed)
    at = random.integers(0, len(data) - RECORD_NBYTES, 50)
    data[at] = random.integers(0, 256, 50)
    segment.write_bytes(data.tobytes())
    result = ddptrace.analyze(run)
    assert "records-damaged" in {finding.code for finding in result.findings}
    assert len([step for step in result.steps if step.rank == 1]) == STEPS


def test_a_rank_whose_folder_is_missing_is_named(run: Path) -> None:
    shutil.rmtree(run / "rank-00001")
    assert "1 of 2 ranks have no folder here (1)" in codes(run)["rank-missing"]


def test_folders_of_ranks_that_were_swapped_are_told(run: Path) -> None:
    first, second, aside = (run / name for name in ("rank-00000", "rank-00001", "aside"))
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    found = [finding for finding in ddptrace.analyze(run).findings if finding.code == "other-rank"]
    assert [(one.where, one.severity) for one in found] == [("rank 0", "error"), ("rank 1", "error")]
    assert found[0].message.startswith("rank-00000 holds what rank 1 recorded")


@pytest.mark.parametrize("unix_ns", [-(2**63), 0, 2**63 - 1])
def test_a_pair_of_clocks_that_cannot_be_is_passed_over(run: Path, unix_ns: int) -> None:
    right = ddptrace.analyze(run).steps
    for segment in (run / "rank-00001").glob("records-*.bin"):
        records = np.fromfile(segment, EVENT_DTYPE)
        records["a"][np.flatnonzero(records["kind"] == Kind.CLOCK)[1:]] = unix_ns
        records.tofile(segment)
    found = ddptrace.analyze(run)
    assert "clock-stepped" not in {finding.code for finding in found.findings}
    assert list(found.steps) == list(right)


def test_a_rank_without_records_is_named(run: Path) -> None:
    (run / "rank-00001" / "records-00000.bin").unlink()
    assert "rank-00001 holds no records" in codes(run)["rank-empty"]


def test_a_missing_manifest_is_made_up_for_and_said(run: Path) -> None:
    (run / "manifest.json").unlink()
    result = ddptrace.analyze(run)
    assert result.world_size == 2
    assert len(result.steps) == 2 * STEPS
    assert "no-manifest" in {finding.code for finding in result.findings}


def test_a_newer_minor_version_is_read_and_said(run: Path) -> None:
    major, minor = SCHEMA_VERSION.split(".")
    newer = f"{major}.{int(minor) + 1}"
    rewrite(run / "manifest.json", schema=newer, something_new=[1])
    assert f"schema version {newer}, newer than {SCHEMA_VERSION}" in codes(run)["newer-schema"]
    assert len(ddptrace.analyze(run).steps) == 2 * STEPS


def test_another_major_version_is_refused_with_what_to_do(run: Path) -> None:
    rewrite(run / "manifest.json", schema="2.0")
    with pytest.raises(
        ddptrace.RunDirectoryError, match=r"schema version 2\.0, and this ddptrace reads 1\.x; analyze it with"
    ):
        ddptrace.analyze(run)


def test_a_folder_left_by_another_run_is_told(run: Path) -> None:
    rewrite(run / "rank-00001" / "meta.json", run_id="0" * 32, job="another")
    assert "the id of another run" in codes(run)["other-run"]


def test_a_folder_left_by_another_run_is_compared_with_no_rank_of_this_one(run: Path) -> None:
    """Not even where it made fewer calls."""
    shorter = run.parent / "shorter"
    torchrun("ddp.py", shorter, "--steps", STEPS - 2)
    shutil.rmtree(run / "rank-00001")
    shutil.copytree(shorter / "rank-00001", run / "rank-00001")
    rewrite(run / "rank-00001" / "meta.json", job="another")
    result = ddptrace.analyze(run)
    assert (len(result.matches), len(result.desyncs), len(result.critical_path)) == (0, 0, 0)
    found = {finding.code for finding in result.findings}
    assert "other-run" in found and not found & {"desync", "rank-behind", "late-rank"}


def test_a_folder_that_is_a_copy_of_another_is_compared_with_no_rank(run: Path) -> None:
    right = ddptrace.analyze(run)
    shutil.copytree(run / "rank-00001", run / "rank-00002")
    found = ddptrace.analyze(run)
    assert list(found.matches) == list(right.matches)
    assert "it is compared with no other rank" in codes(run)["other-rank"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema": null, "world_size": "x", "zero_unix_ns": "y"}'])
def test_a_garbled_manifest_is_one_sentence_or_tables(run: Path, content: str) -> None:
    (run / "manifest.json").write_text(content)
    if "null" in content:
        with pytest.raises(ddptrace.RunDirectoryError, match="schema version None"):
            ddptrace.analyze(run)
    else:
        assert len(ddptrace.analyze(run).steps) == 2 * STEPS


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("path", [None, 3, b"run", "", "a\0b"])
def test_what_is_no_path_is_told_so_by_trace_and_by_analyze(path: object) -> None:
    with pytest.raises(ddptrace.RunDirectoryError, match="is not the path of a run directory"):
        ddptrace.trace(path)  # type: ignore[arg-type]
    with pytest.raises(ddptrace.RunDirectoryError, match="is not the path of a run directory"):
        ddptrace.analyze(path)  # type: ignore[arg-type]


def test_a_path_longer_than_the_system_allows_is_one_sentence() -> None:
    with pytest.raises(ddptrace.RunDirectoryError, match="does not exist; give"):
        ddptrace.analyze("x" * 5000)
    with pytest.raises(ddptrace.RunDirectoryError, match="cannot record into"), ddptrace.trace("x" * 5000):
        pass


ABSURD = [
    ("manifest.json", {"world_size": 10**18}),
    ("manifest.json", {"zero_unix_ns": 10**30}),
    ("rank-00001/meta.json", {"pid": None}),
    ("rank-00001/meta.json", {"pid": [1], "host": {}}),
]


@pytest.mark.parametrize(("file", "changes"), ABSURD)
def test_absurd_values_in_a_json_file_cost_nothing_but_themselves(
    run: Path, file: str, changes: dict[str, object]
) -> None:
    rewrite(run / file, **changes)
    assert len(ddptrace.analyze(run).steps) == 2 * STEPS


def test_json_nested_beyond_reason_is_taken_for_no_json(run: Path) -> None:
    (run / "manifest.json").write_text("[" * 100_000)
    assert "no-manifest" in codes(run)


def test_a_fifo_or_a_device_in_place_of_a_file_does_not_hang(run: Path) -> None:
    (run / "manifest.json").unlink()
    os.mkfifo(run / "manifest.json")
    (run / "rank-00001" / "records-00001.bin").symlink_to("/dev/zero")
    (run / "rank-²").mkdir()
    assert len(ddptrace.analyze(run).steps) == 2 * STEPS


def test_a_stretch_of_records_that_is_there_twice_gives_tables(run: Path) -> None:
    segment = run / "rank-00000" / "records-00000.bin"
    data = segment.read_bytes()
    segment.write_bytes(data[:-RECORD_NBYTES] + data)
    assert "records-damaged" in codes(run)


def test_overwriting_a_restarted_job_leaves_none_of_its_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    for restart, steps in ((0, 3), (1, 2)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restart))
        with ddptrace.trace(tmp_path / "run"):
            train(steps=steps)
    assert "restarted" in codes(tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with pytest.raises(RunDirectoryError, match="already holds a run"), ddptrace.trace(tmp_path / "run"):
        pass
    with ddptrace.trace(tmp_path / "run", overwrite=True):
        train(steps=4)
    assert not (tmp_path / "run" / "attempt-1").exists()
    assert len(ddptrace.analyze(tmp_path / "run").steps) == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="root may be another user for a while, nobody else may")
@pytest.mark.parametrize("ask", [read_run, read_job])
def test_a_rank_whose_folder_may_not_be_listed_is_no_rank_without_records(
    run: Path, ask: Callable[[Path], object]
) -> None:
    ask(run)  # what is imported for that is there now
    (run / "rank-00001").chmod(0o700)
    for folder in (run, *run.parents[:-2]):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(RunDirectoryError, match="rank-00001 cannot be read: Permission denied; check its perm"):
            ask(run)
    finally:
        os.seteuid(0)
