"""The last steps of a run that grows say what the whole run says of these steps, and no more is held than they take."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddptrace.analysis.analyze import analyze_rank
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.errors import RunDirectoryError
from ddptrace.live import rank_follower, run_follower, watched
from ddptrace.live.run_follower import RunFollower
from ddptrace.live.watched import LEAST_STEPS, Recent, Watched, cut, joined
from ddptrace.load.run import read_run
from ddptrace.load.tables import Run
from ddptrace.record.directory import write_json, write_meta
from ddptrace.schema import MANIFEST, META, SCHEMA_VERSION
from ddptrace.trace_options import LEAST_NBYTES, Keep
from tests.unit.kept_records import give_way
from tests.unit.made_training import Plan, Player
from tests.unit.telemetry_records import CALLS, RUN_ID, Rank

PER_STEP = 1 + 5 + 2 + CALLS  # a step, its phases, buckets and collectives; one runs in two steps


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_follower, "READ_EVERY_S", 0.0)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Rank]]:
    found = [living(Rank(tmp_path, number)) for number in range(2)]
    write_manifest(tmp_path, 2)
    yield found
    for rank in found:
        rank.recorder.close()


def living(rank: Rank) -> Rank:
    """Its process is this one."""
    meta = json.loads((rank.folder / META).read_text())
    write_meta(rank.folder, meta | {"host": socket.gethostname(), "pid": os.getpid()})
    return rank


def write_manifest(root: Path, world_size: int, run_id: str = RUN_ID, **more: object) -> None:
    said = {"schema": SCHEMA_VERSION, "run_id": run_id, "zero_unix_ns": 0, "world_size": world_size}
    write_json(root / MANIFEST, said | more)


def look(watched: Watched) -> None:
    watched.look()
    while watched.is_behind:
        watched.look()


def take_in(follower: RunFollower, held: Recent) -> None:
    follower.is_behind = True
    while follower.is_behind:
        for batch in follower.look():
            held.add(batch)


def of_last(rows: Any, since: int, zero_ns: int) -> list[Any]:
    """Of the whole run those of the last steps, on the zero of what is watched."""
    return [moved(row, zero_ns) for row in rows if row.step is not None and row.step >= since]


def moved(row: Any, zero_ns: int) -> Any:
    names = (name for name in type(row).__slots__ if name.endswith("_at_ns"))
    return replace(row, **{name: at + zero_ns for name in names if (at := getattr(row, name)) is not None})


def test_the_rows_of_the_last_steps_are_those_of_the_whole_run(
    tmp_path: Path, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN two ranks that are looked at now and then while they train
    monkeypatch.setattr(watched, "LAST_STEPS", 20)
    follower, held = RunFollower(tmp_path), Recent(RUN_ID)
    for first in range(0, 60, 7):
        for rank in ranks:
            rank.steps(first, first + 7)
        take_in(follower, held)
    for rank in ranks:
        rank.recorder.close()
    take_in(follower, held)
    # WHEN the whole run is analyzed
    found, whole = list(held.tables()), read_run(tmp_path)
    assert follower.is_over and held.zero_unix_ns is not None
    every = [analyze_rank(run) for run in whole.ranks]
    zero_ns = whole.zero_unix_ns - held.zero_unix_ns
    # THEN each row of the last 20 steps is the same; what runs in two steps is told where it began
    for name in ("steps", "phases", "buckets", "traffic", "gradient_traffic"):
        rows = [row for tables in every for row in of_last(tables.rows[name], 43, zero_ns)]
        assert [row for tables in found for row in tables.rows[name]] == rows, name
        assert len(rows) >= 40, name
    begun = [{row.seq for row in one.collectives if row.part == 0 and row.step is not None and row.step >= 43}
             for one in every]  # fmt: skip
    calls = [moved(row, zero_ns) for one, seqs in zip(every, begun, strict=True) for row in one.collectives
             if row.seq in seqs]  # fmt: skip
    assert [row for tables in found for row in tables.collectives] == calls
    assert len(calls) >= 2 * 20 * CALLS


def pieces(tables: RankTables, *edges: int) -> RankTables:
    """Cut at these steps, and joined."""
    return joined([cut(tables, range(*span)) for span in itertools.pairwise(edges)])


def test_a_trail_that_was_cut_and_joined_is_the_trail() -> None:
    [tables, _] = [analyze_rank(run) for run in Player(Plan(steps=30, loss=500_000)).runs()]
    whole, found = tables.trail, pieces(tables, 0, 3, 4, 11, 30).trail
    for name in ("kind", "at_ns", "seq", "step", "local_ns"):
        assert np.array_equal(getattr(found, name), getattr(whole, name)), name


def test_of_a_later_stretch_only_the_begin_of_the_trail_is_new() -> None:
    [tables, _] = [analyze_rank(run) for run in Player(Plan(steps=30)).runs()]
    whole, found = tables.trail, pieces(tables, 10, 12, 20).trail
    first = tables.steps[10].begin_at_ns
    assert (found.at_ns[0], found.seq[0], found.local_ns[0].sum()) == (first, -1, 0)
    middle = (whole.step >= 10) & (whole.step < 20)
    for name in ("kind", "at_ns", "seq", "step", "local_ns"):
        assert np.array_equal(getattr(found, name)[1:], getattr(whole, name)[middle]), name


def test_what_is_watched_names_the_same_late_rank_as_the_whole_run(tmp_path: Path) -> None:
    from ddptrace.analysis.analyze import RunHead, analyze_run, combine

    plan = Plan(steps=80, late=lambda rank, step: {"forward": 6_000_000} if rank == 1 else {})
    runs = Player(plan).runs()
    run = Run(tmp_path, SCHEMA_VERSION, RUN_ID, 0, 2, tuple(runs), ())
    parts = [pieces(analyze_rank(one), 20, 45, 46, 80) for one in runs]
    found = combine(RunHead(SCHEMA_VERSION, RUN_ID, 0, 2, ()), parts).suspects
    told = [(one.rank, one.phase, one.cause) for one in analyze_run(run).suspects]
    assert [(one.rank, one.phase, one.cause) for one in found] == told == [(1, "forward", "forward")]
    assert found[0].cost_ns == pytest.approx(6_000_000, rel=0.01)


def test_of_long_steps_fewer_are_held_and_never_too_few_to_tell_anything(
    tmp_path: Path, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Watched(tmp_path)
    for rank in ranks:
        rank.steps(0, 60)
    look(screen)
    assert screen.most_steps == watched.LAST_STEPS
    monkeypatch.setattr(watched, "MOST_ROWS", 30 * 2 * (PER_STEP + 1))
    assert screen.most_steps in range(25, 32)
    monkeypatch.setattr(watched, "MOST_ROWS", 1)
    assert screen.most_steps == LEAST_STEPS
    result = screen.result()
    assert result is not None
    assert {row.step for row in result.steps} == set(range(59 - LEAST_STEPS, 59))


def test_after_a_gap_it_begins_anew(tmp_path: Path, ranks: list[Rank]) -> None:
    follower, held = RunFollower(tmp_path), Recent(RUN_ID)
    ranks[0].steps(0, 20)
    first = next(batch for batch in follower.look() if batch.identity.rank == 0)
    held.add(replace(first, steps=range(3, 6)))
    held.add(replace(first, steps=range(6, 9)))
    assert [row.step for row in next(held.tables()).steps] == [3, 4, 5, 6, 7, 8]
    held.add(replace(first, steps=range(12, 15)))
    assert [row.step for row in next(held.tables()).steps] == [12, 13, 14]


def test_the_same_tables_are_not_made_twice(tmp_path: Path, ranks: list[Rank]) -> None:
    watched = Watched(tmp_path)
    for rank in ranks:
        rank.steps(0, 9)
    look(watched)
    first = watched.result()
    watched.look()
    assert first is not None and watched.result() is first
    for rank in ranks:
        rank.steps(9, 12)
    look(watched)
    assert watched.result() is not first


def test_a_run_that_is_far_ahead_is_caught_up_with_and_only_its_newest_steps_are_analysed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a run of many files
    rank = living(Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES)))
    write_manifest(tmp_path, 1)
    for first in range(0, 2000, 100):
        rank.steps(first, first + 100)
        give_way(rank.recorder)
    assert len(list(rank.folder.glob("records-*.bin"))) > 6
    # WHEN it is watched from now on
    analysed: list[int] = []
    real = rank_follower.analyze_rank
    monkeypatch.setattr(rank_follower, "analyze_rank", lambda run: analysed.append(len(run.steps)) or real(run))
    watched = Watched(tmp_path)
    look(watched)
    # THEN the newest steps are there, and the work was that of these
    result = watched.result()
    assert result is not None
    assert [row.step for row in result.steps] == list(range(1899, 1999))
    assert sum(analysed) < 300
    assert watched.ranks[0].found == 2000
    rank.recorder.close()


def test_a_follower_that_wants_only_the_newest_steps_says_how_many_it_did_not_read(
    tmp_path: Path, ranks: list[Rank]
) -> None:
    ranks[0].steps(0, 50)
    follower = RunFollower(tmp_path, newest=10)
    batches = list(follower.look())
    assert [batch.steps for batch in batches] == [range(39, 49)]
    assert follower.losses()[RUN_ID, 0].unread_steps == 39


def test_of_a_restarted_job_the_newest_attempt_is_shown(tmp_path: Path, ranks: list[Rank]) -> None:
    watched = Watched(tmp_path)
    for rank in ranks:
        rank.steps(0, 9)
    look(watched)
    assert [now.identity.attempt for now in watched.ranks] == [0, 0]
    (tmp_path / "attempt-1").mkdir()
    write_manifest(tmp_path / "attempt-1", 2, "a1" * 16, attempt=1)
    again = living(Rank(tmp_path / "attempt-1", 1, run_id="a1" * 16))
    look(watched)
    assert [(now.identity.attempt, now.identity.rank) for now in watched.ranks] == [(1, 1)]
    assert watched.result() is None
    again.steps(0, 9)
    ranks[0].steps(9, 12)  # its process may take a while to end
    look(watched)
    result = watched.result()
    assert result is not None and result.run_id == "a1" * 16
    assert {row.step for row in result.steps} == set(range(8))
    again.recorder.close()


def test_a_rank_is_told_to_have_worked_when_it_last_recorded_its_training(tmp_path: Path, ranks: list[Rank]) -> None:
    watched = Watched(tmp_path)
    ranks[0].steps(0, 4)
    watched.look()
    [now, idle] = watched.ranks
    end_ns = now.worked_unix_ns
    ranks[0].recorder.clock()
    watched.look()
    assert watched.ranks[0].worked_unix_ns == end_ns
    assert watched.ranks[0].beat_unix_ns >= now.beat_unix_ns
    assert not idle.closed and not idle.gone and idle.found == 0


def test_a_profiler_that_was_asked_for_is_not_asked_for_again(tmp_path: Path, ranks: list[Rank]) -> None:
    watched = Watched(tmp_path)
    for rank in ranks:
        rank.steps(0, 9)
    look(watched)
    result = watched.result()
    assert result is not None and "coarse-compute" in {one.code for one in result.findings}
    write_manifest(tmp_path, 2, profile="schedule")
    for rank in ranks:
        rank.steps(9, 12)
    look(watched)
    result = watched.result()
    assert result is not None and "coarse-compute" not in {one.code for one in result.findings}


def test_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match="is a file; give the directory"):
        Watched(tmp_path / "trace.json")
