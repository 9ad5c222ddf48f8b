"""A run directory that grows is followed as a whole: ranks that appear, are renamed, are killed, are started anew."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ddptrace.errors import RunDirectoryError
from ddptrace.live import rank_follower, run_folders, run_follower
from ddptrace.live.batch import RankBatch
from ddptrace.live.run_follower import RunFollower
from ddptrace.record import reader
from ddptrace.record.directory import PENDING, write_json, write_meta
from ddptrace.schema import MANIFEST, META, SCHEMA_VERSION
from ddptrace.trace_options import LEAST_NBYTES, Keep
from tests.launch import ROOT
from tests.unit.kept_records import give_way
from tests.unit.telemetry_records import RUN_ID, STEP_NS, Rank, write_manifest

SILENT_S = 9 * STEP_NS / 1e9 + 0.3
"""After that, records of nine steps are 0.3 s old."""

Steps = dict[tuple[int, int], list[int]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_follower, "READ_EVERY_S", 0.0)


def look(follower: RunFollower) -> list[RankBatch]:
    """Until nothing waits."""
    batches = list(follower.look())
    while follower.is_behind:
        batches += follower.look()
    return batches


def steps_of(batches: list[RankBatch]) -> Steps:
    """By attempt and rank."""
    found: Steps = defaultdict(list)
    for batch in batches:
        found[batch.identity.attempt, batch.identity.rank] += batch.steps
    return found


def living(rank: Rank) -> Rank:
    """Its process is this one."""
    meta = json.loads((rank.folder / META).read_text())
    write_meta(rank.folder, meta | {"host": socket.gethostname(), "pid": os.getpid()})
    return rank


def test_a_directory_that_is_not_there_yet_is_waited_for_and_all_ranks_of_it_are_given_out(tmp_path: Path) -> None:
    root = tmp_path / "run"
    follower = RunFollower(root)
    assert look(follower) == []
    assert not follower.is_over
    ranks = [living(Rank(root, number)) for number in range(3)]
    write_json(root / MANIFEST, {"schema": SCHEMA_VERSION, "run_id": RUN_ID, "zero_unix_ns": 0, "world_size": 3})
    for rank in ranks:
        rank.steps(0, 7)
    batches = look(follower)
    assert steps_of(batches) == {(0, number): list(range(6)) for number in range(3)}
    assert not follower.is_over
    for rank in ranks:
        rank.recorder.close()
    batches += look(follower)
    assert steps_of(batches) == {(0, number): list(range(7)) for number in range(3)}
    assert [batch.is_last for batch in batches[-3:]] == [True] * 3
    assert (follower.is_over, follower.world_size) == (True, 3)
    assert {identity.run_id for identity in follower.ranks} == {RUN_ID}


def test_a_directory_that_is_removed_before_any_rank_is_found_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "run"
    root.mkdir()
    follower = RunFollower(root)
    root.rmdir()
    assert look(follower) == []
    assert (follower.is_over, follower.is_removed) == (False, False)  # the job may be started anew
    monkeypatch.setattr(run_follower, "LEFT_NS", 0)
    assert look(follower) == []
    assert (follower.is_over, follower.is_removed) == (True, True)
    root.mkdir()
    assert look(follower) == []
    assert (follower.is_over, follower.is_removed) == (False, False)


def test_ranks_that_are_not_there_yet_keep_it_from_being_over(tmp_path: Path) -> None:
    rank = living(Rank(tmp_path))
    write_json(tmp_path / MANIFEST, {"schema": SCHEMA_VERSION, "run_id": RUN_ID, "zero_unix_ns": 0, "world_size": 2})
    rank.recorder.close()
    follower = RunFollower(tmp_path)
    look(follower)
    assert not follower.is_over
    living(Rank(tmp_path, 1)).recorder.close()
    look(follower)
    assert follower.is_over


def test_no_rank_waits_for_another_that_has_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_follower, "BATCH_RECORDS", 60)
    ranks = [living(Rank(tmp_path, number)) for number in range(2)]
    write_manifest(tmp_path)
    ranks[0].steps(0, 60)
    ranks[1].steps(0, 6)
    follower = RunFollower(tmp_path)
    first = list(follower.look())
    assert [batch.identity.rank for batch in first] == [0, 1]
    assert follower.is_behind
    first += look(follower)
    assert steps_of(first) == {(0, 0): list(range(59)), (0, 1): list(range(5))}
    for rank in ranks:
        rank.recorder.close()


@pytest.mark.parametrize("pid", [1, None])
def test_a_job_that_was_over_long_before_is_given_out_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int | None
) -> None:
    # GIVEN a job of another machine, or of a process of this one whose number is another's by now
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    meta = json.loads((rank.folder / META).read_text())
    host = "far" if pid is None else socket.gethostname()
    write_meta(rank.folder, meta | {"host": host, "pid": pid, "started_ticks": 1})
    monkeypatch.setattr(run_folders, "GONE_NS", -(10**15))  # the steps made here last longer than making them
    for first in range(0, 2000, 100):
        rank.steps(first, first + 100)
        give_way(rank.recorder)
    rank.recorder.close()
    write_manifest(tmp_path)
    assert len(list(rank.folder.glob("records-*.bin"))) > 6
    follower = RunFollower(tmp_path)
    batches = look(follower)
    assert steps_of(batches) == {(0, 0): list(range(2000))}
    assert [batch.is_last for batch in batches].count(True) == 1
    assert follower.is_over


def test_a_rank_that_learns_its_number_late_gives_all_its_steps_once(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    write_manifest(tmp_path)
    living(rank)
    pending = tmp_path / f"{PENDING}here-1-ab"
    named = rank.folder
    rank.folder = named.rename(pending)
    follower = RunFollower(tmp_path)
    rank.steps(0, 6)
    assert look(follower) == []
    rank.folder = pending.rename(named)
    batches = look(follower)
    rank.steps(6, 9)
    batches += look(follower)
    rank.recorder.close()
    batches += look(follower)
    assert steps_of(batches) == {(0, 0): list(range(9))}
    assert len(follower.ranks) == 1


def test_a_folder_that_is_renamed_keeps_how_far_it_was_read(tmp_path: Path) -> None:
    rank = living(Rank(tmp_path, 1))
    write_manifest(tmp_path)
    follower = RunFollower(tmp_path)
    rank.steps(0, 6)
    batches = look(follower)
    rank.folder = rank.folder.rename(tmp_path / "rank-00002")
    rank.steps(6, 9)
    batches += look(follower)
    rank.recorder.close()
    batches += look(follower)
    assert [step for batch in batches for step in batch.steps] == list(range(9))


def test_another_attempt_is_followed_beside_the_one_before_which_is_read_to_its_end(tmp_path: Path) -> None:
    first = living(Rank(tmp_path))
    write_manifest(tmp_path)
    follower = RunFollower(tmp_path)
    first.steps(0, 6)
    batches = look(follower)
    root = tmp_path / "attempt-1"
    second = living(Rank(root, run_id="second"))
    write_manifest(root, "second")
    second.steps(0, 8)
    first.steps(6, 7)
    first.recorder.close()
    batches += look(follower)
    second.recorder.close()
    batches += look(follower)
    assert steps_of(batches) == {(0, 0): list(range(7)), (1, 0): list(range(8))}
    assert {identity.run_id for identity in follower.ranks} == {RUN_ID, "second"}
    assert follower.is_over


PROGRAM = """
import sys, time
from pathlib import Path
from ddptrace.record.directory import write_meta
from tests.unit.telemetry_records import RUN_ID, Rank, write_manifest
import json, os, socket
rank = Rank(Path(sys.argv[1]))
meta = json.loads((rank.folder / "meta.json").read_text())
write_meta(rank.folder, meta | {"host": socket.gethostname(), "pid": os.getpid()})
write_manifest(Path(sys.argv[1]))
rank.steps(0, 9)
print("written", flush=True)
time.sleep(60)
"""


@contextmanager
def process_that_writes(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, root], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_rank_that_is_killed_gives_all_that_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folders, "GONE_NS", 100_000_000)
    follower = RunFollower(tmp_path)
    with process_that_writes(tmp_path) as process:
        # GIVEN a rank that is silent for longer than that, and alive
        time.sleep(SILENT_S)
        batches = look(follower)
        assert steps_of(batches) == {(0, 0): list(range(8))}
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    # WHEN it is gone without a word
    batches += look(follower)
    # THEN its last step comes too, though nothing says that it is whole
    assert steps_of(batches) == {(0, 0): list(range(9))}
    assert batches[-1].is_last
    # AND the run is over only once nobody has started it anew for a while
    assert not follower.is_over
    monkeypatch.setattr(run_follower, "LEFT_NS", 0)
    look(follower)
    assert follower.is_over


def test_a_rank_on_a_machine_that_cannot_be_asked_is_over_when_all_are_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, near = Rank(tmp_path, 0), living(Rank(tmp_path, 1))  # the far one's host is "h"
    write_manifest(tmp_path)
    far.steps(0, 9)
    near.steps(0, 9)
    follower = RunFollower(tmp_path)
    batches = look(follower)
    assert steps_of(batches)[0, 0] == list(range(8))
    monkeypatch.setattr(run_folders, "LEFT_NS", 100_000_000)
    time.sleep(SILENT_S)
    batches += look(follower)
    assert steps_of(batches) == {(0, 0): list(range(9)), (0, 1): list(range(8))}
    far.recorder.close()
    near.recorder.close()


@pytest.fixture(params=["another inode", "the same inode"])
def inodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems differ in what a folder gets that is made where another was removed."""
    if request.param == "the same inode":
        find = run_follower.rank_folders
        monkeypatch.setattr(
            run_follower, "rank_folders", lambda path: (replace(one, inode=(0, one.rank or 0)) for one in find(path))
        )


def test_a_run_that_takes_the_place_of_another_is_given_out_as_itself(tmp_path: Path, inodes: None) -> None:
    one = living(Rank(tmp_path))
    write_manifest(tmp_path)
    one.steps(0, 6)
    one.recorder.close()
    follower = RunFollower(tmp_path)
    batches = look(follower)
    shutil.rmtree(tmp_path / "rank-00000")
    another = living(Rank(tmp_path, run_id="another"))
    write_manifest(tmp_path, "another")
    another.steps(0, 9)
    batches += look(follower)
    another.recorder.close()
    batches += look(follower)
    given: dict[str, list[int]] = defaultdict(list)
    for batch in batches:
        given[batch.identity.run_id] += batch.steps
    assert given == {RUN_ID: list(range(6)), "another": list(range(9))}


def test_a_run_that_is_overwritten_while_it_is_followed_gives_what_was_read_of_it(tmp_path: Path, inodes: None) -> None:
    one = living(Rank(tmp_path))
    write_manifest(tmp_path)
    one.steps(0, 6)
    follower = RunFollower(tmp_path)
    batches = look(follower)
    shutil.rmtree(tmp_path / "rank-00000")
    another = living(Rank(tmp_path, run_id="another"))
    write_manifest(tmp_path, "another")
    another.steps(0, 9)
    another.recorder.close()
    batches += look(follower) + look(follower) + look(follower)
    given: dict[str, list[int]] = defaultdict(list)
    for batch in batches:
        given[batch.identity.run_id] += batch.steps
    assert given == {RUN_ID: list(range(6)), "another": list(range(9))}


def test_only_the_ranks_of_one_host_are_followed_where_that_is_wanted(tmp_path: Path) -> None:
    for number, host in enumerate(("a", "b", "a")):
        rank = Rank(tmp_path, number)
        meta = json.loads((rank.folder / META).read_text())
        write_meta(rank.folder, meta | {"host": host})
        rank.steps(0, 6)
        rank.recorder.close()
    write_manifest(tmp_path)
    follower = RunFollower(tmp_path, host="a")
    assert steps_of(look(follower)) == {(0, 0): list(range(6)), (0, 2): list(range(6))}
    assert follower.is_over


@pytest.mark.parametrize("file", [MANIFEST, f"rank-00000/{META}"])
def test_a_run_of_another_major_schema_is_refused_with_a_sentence(tmp_path: Path, file: str) -> None:
    Rank(tmp_path).recorder.close()
    write_json(tmp_path / file, {"schema": "9.0", "run_id": RUN_ID})
    with pytest.raises(RunDirectoryError, match=r"schema version 9\.0"):
        look(RunFollower(tmp_path))


def test_a_rank_that_cannot_be_read_keeps_no_other_back_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [living(Rank(tmp_path, number)) for number in range(2)]
    write_manifest(tmp_path)
    for rank in ranks:
        rank.steps(0, 6)
        rank.recorder.close()
    read = reader.read_regular

    def refused(path: Path, most_nbytes: int) -> bytes:
        if "rank-00000" in str(path):
            raise PermissionError(13, "Permission denied")
        return read(path, most_nbytes)

    monkeypatch.setattr(reader, "read_regular", refused)
    follower = RunFollower(tmp_path)
    assert steps_of(look(follower)) == {(0, 1): list(range(6))}
    assert follower.losses()[RUN_ID, 0].damaged == (
        "rank-00000 cannot be read: Permission denied; check its permissions",
    )
    # AND once it can be, nothing is missing
    monkeypatch.setattr(reader, "read_regular", read)
    assert steps_of(look(follower)) == {(0, 0): list(range(6))}
    assert follower.losses()[RUN_ID, 0].damaged == ()
    assert follower.is_over
