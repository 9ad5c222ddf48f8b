"""Record files that grow become tables a few steps at a time: the same tables as of the whole at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddptrace.analysis import analyze_run
from ddptrace.keep import LEAST_NBYTES, Keep
from ddptrace.load import read_run
from ddptrace.schema import META, Kind, StepEnd
from ddptrace.telemetry import follow
from ddptrace.telemetry.follow import Batch, Follower, Identity, read_identity
from ddptrace.telemetry.trees import Node, trees
from tests.unit.kept_records import give_way
from tests.unit.telemetry_records import CALLS, RUN_ID, STEP_NS, Rank, recording, write_manifest

IDENTITY = Identity(RUN_ID, 0, {})


def drain(follower: Follower, *, final: bool = False) -> list[Batch]:
    batches = []
    while (batch := follower.next_batch(IDENTITY, final=final)) is not None:
        batches.append(batch)
    return batches


def steps_of(batches: list[Batch]) -> list[int]:
    return [step for batch in batches for step in batch.steps]


def flat(node: Node, zero: int) -> list[tuple[object, ...]]:
    below = [row for child in node.children for row in flat(child, zero)]
    return [
        (node.name, node.key, zero + node.begin_at_ns, zero + node.end_at_ns, sorted(node.attributes.items())),
        *below,
    ]


def spans_of(batches: list[Batch]) -> list[tuple[object, ...]]:
    made = [tree for batch in batches for tree in trees(batch.result, batch.steps, strays=batch.is_last)]
    return [row for tree in made for root in tree.roots for row in flat(root, tree.zero_unix_ns)]


def follow_along(rank: Rank, steps: int) -> list[Batch]:
    """Look after every step, the end included."""
    follower, batches = Follower(rank.folder), []
    for k in range(steps):
        rank.step(k)
        if k:
            rank.late(k - 1)
        follower.read(live=True)
        batches += drain(follower)
    rank.late(steps - 1)
    rank.recorder.close()
    follower.read(live=False)
    return batches + drain(follower, final=True)


def test_following_gives_the_same_spans_as_reading_it_all_at_the_end(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    write_manifest(tmp_path)
    batches = follow_along(rank, 12)
    assert steps_of(batches) == list(range(12))
    assert len(batches) > 5  # in pieces
    whole = analyze_run(read_run(tmp_path))
    assert len(whole.collectives) == 12 * CALLS + 12  # the loss runs on in the next step, or outside
    assert spans_of(batches) == [
        row for tree in trees(whole) for root in tree.roots for row in flat(root, tree.zero_unix_ns)
    ]


def test_a_step_is_given_out_once_the_next_one_has_ended(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        follower = Follower(rank.folder)
        rank.steps(0, 6)
        follower.read(live=True)
        assert steps_of(drain(follower)) == [0, 1, 2, 3, 4]
        follower.read(live=True)
        assert drain(follower) == []
        rank.steps(6, 7)
        follower.read(live=True)
        assert steps_of(drain(follower)) == [5]


def test_what_was_given_out_is_forgotten(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        follower = Follower(rank.folder)
        held = []
        for k in range(40):
            rank.steps(k, k + 1)
            follower.read(live=True)
            drain(follower)
            held.append(len(follower._events))
    assert max(held[10:]) <= max(held[:10])


def test_steps_said_after_the_first_update_are_the_steps(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        follower = Follower(rank.folder)
        rank.steps(0, 3)
        follower.read(live=True)
        assert drain(follower) == []  # it may still be said
        for k in range(2):
            rank.step(k, ended_by=StepEnd.SAID)
        follower.read(live=True)
        (batch,) = drain(follower)
        assert steps_of([batch]) == [0]
        assert {row.ended_by for row in batch.result.steps} == {"said"}


def test_a_few_backwards_are_no_steps_until_it_is_clear_that_no_update_follows(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        follower = Follower(rank.folder)
        for k in range(20):
            rank.step(k, ended_by=StepEnd.BACKWARD)
        follower.read(live=True)
        assert drain(follower) == []
        for k in range(20, 66):
            rank.step(k, ended_by=StepEnd.BACKWARD)
        follower.read(live=True)
        assert steps_of(drain(follower)) == list(range(65))


def test_a_short_run_is_given_out_at_the_end(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        rank.steps(0, 2)
    follower = Follower(rank.folder)
    follower.read(live=False)
    batches = drain(follower, final=True)
    assert steps_of(batches) == [0, 1]
    assert [batch.is_last for batch in batches] == [True]


def test_a_run_without_steps_ends_in_one_batch_of_what_is_outside(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        pass
    follower = Follower(rank.folder)
    follower.read(live=False)
    (batch,) = drain(follower, final=True)
    assert (len(batch.steps), batch.is_last) == (0, True)


def test_too_many_records_make_the_oldest_steps_be_given_up_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "MAX_RECORDS", 100)
    with recording(tmp_path) as rank:
        rank.steps(0, 50)
    follower = Follower(rank.folder)
    follower.read(live=False)
    assert len(follower._events) <= 100
    given = steps_of(drain(follower, final=True))
    assert given
    assert given == list(range(given[0], 50))
    assert (follower.found(), given[0] > 0) == (50, True)


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "BATCH_RECORDS", 60)
    with recording(tmp_path) as rank:
        rank.steps(0, 30)
    follower = Follower(rank.folder)
    follower.read(live=False)
    batches = drain(follower, final=True)
    assert steps_of(batches) == list(range(30))
    assert max(len(batch.steps) for batch in batches) < 10


def test_a_completion_that_comes_steps_later_is_not_missed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "BATCH_RECORDS", 10)  # a step at a time
    with recording(tmp_path) as rank:
        rank.step(0)
        rank.steps(1, 8)
        rank.late(0, steps_later=5)
    follower = Follower(rank.folder)
    follower.read(live=False)
    first, *others = drain(follower, final=True)
    assert len(others) > 5
    loss = next(row for row in first.result.collectives if row.seq == CALLS)
    assert loss.done_at_ns is not None


def test_a_file_that_goes_away_costs_nothing(tmp_path: Path) -> None:
    # GIVEN a follower that has given out steps and meets a file that cannot be read
    with recording(tmp_path) as rank:
        write_manifest(tmp_path)
        follower = Follower(rank.folder)
        rank.steps(0, 6)
        follower.read(live=True)
        batches = drain(follower)
        ghost = rank.folder / "records-99999.bin"
        ghost.mkdir()
        rank.steps(6, 9)
        follower.read(live=True)
        ghost.rmdir()
        follower.read(live=True)
        batches += drain(follower)
    # THEN what follows is complete, and counted as if nothing had happened
    follower.read(live=False)
    batches += drain(follower, final=True)
    whole = analyze_run(read_run(tmp_path))
    assert spans_of(batches) == [
        row for tree in trees(whole) for root in tree.roots for row in flat(root, tree.zero_unix_ns)
    ]


def test_records_that_are_let_go_behind_the_follower_cost_nothing(tmp_path: Path) -> None:
    # GIVEN a follower that keeps up with a rank whose oldest records go
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    follower, batches = Follower(rank.folder), []
    for first in range(0, 6000, 100):
        rank.steps(first, first + 100)
        give_way(rank.recorder)
        follower.read(live=True)
        batches += drain(follower)
    rank.recorder.close()
    follower.read(live=False)
    batches += drain(follower, final=True)
    # THEN every step was given out, though the first are gone by now, with its own numbers of collectives
    assert steps_of(batches) == list(range(6000))
    assert read_run(tmp_path).ranks[0].steps[0].ordinal > 100
    last = [row.ordinal for row in batches[-1].result.collectives]
    assert max(last) == 6000 * CALLS - 1


def test_a_follower_that_is_left_behind_goes_on_with_what_is_there(tmp_path: Path) -> None:
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    follower = Follower(rank.folder)
    rank.steps(0, 10)
    follower.read(live=True)
    assert steps_of(drain(follower)) == list(range(9))
    for first in range(10, 6010, 100):
        rank.steps(first, first + 100)
        give_way(rank.recorder)
    rank.recorder.close()
    follower.read(live=False)
    batches = drain(follower, final=True)
    since = read_run(tmp_path).ranks[0].steps[0].ordinal
    given = {row.step for batch in batches for row in batch.result.steps if row.step in batch.steps}
    assert given == set(range(since, 6010))
    assert follower.found() == 6010
    # AND what describes the run, which is in the thinned file again, counts once
    assert "layout-rebuilt" not in {finding.code for batch in batches for finding in batch.result.findings}


def test_steps_that_were_not_recorded_are_not_missed_at_the_end(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        rank.steps(0, 5)
        for k in range(5, 20):
            rank.recorder.event(
                Kind.STEP, StepEnd.OPTIMIZER, 0, rank.begin + k * STEP_NS, rank.begin + (k + 1) * STEP_NS, k, 1
            )
    follower = Follower(rank.folder)
    follower.read(live=False)
    assert follower.found() == 5
    drain(follower, final=True)
    assert follower.found() == 5


def test_who_a_rank_is_is_open_until_rank_0_has_told_the_run(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 1, run_id="own")
    rank.recorder.close()
    assert read_identity(rank.folder, final=False) == Identity("own", 1, _meta(rank))
    write_manifest(tmp_path, "the run's")
    assert read_identity(rank.folder, final=False) is None
    assert read_identity(rank.folder, final=True) == Identity("own", 1, _meta(rank))
    pending = rank.folder.rename(tmp_path / "rank-pending-77")
    assert read_identity(pending, final=False) is None
    (pending / META).unlink()
    at_last = read_identity(pending, final=True)
    assert at_last is not None
    assert (at_last.run_id, at_last.rank) == ("the run's", 0)


def _meta(rank: Rank) -> dict[str, object]:
    content: dict[str, object] = json.loads((rank.folder / META).read_text())
    return content


def test_the_made_records_are_what_the_tests_say(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        rank.steps(0, 3)
    write_manifest(tmp_path)
    result = analyze_run(read_run(tmp_path))
    assert [row.wall_ns for row in result.steps] == [STEP_NS] * 3
    assert [row.index for row in result.buckets] == [0, 1] * 3
