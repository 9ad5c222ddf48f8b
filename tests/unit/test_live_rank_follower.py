"""Record files that grow become tables a few steps at a time: the same tables as of the whole at once."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from ddptrace.analysis.analyze import analyze_run
from ddptrace.live import rank_follower
from ddptrace.live.batch import Identity, Losses, RankBatch
from ddptrace.live.rank_follower import RankFollower
from ddptrace.live.run_folders import read_identity
from ddptrace.load.run import read_run
from ddptrace.schema import EVENT, GUARD, META, RECORD_NBYTES, Kind, StepEnd
from ddptrace.telemetry.rows import of_batch, of_result
from ddptrace.telemetry.spans.trees import Node, trees
from ddptrace.trace_options import LEAST_NBYTES, Keep
from tests.unit.kept_records import give_way, settled
from tests.unit.telemetry_records import CALLS, MS, RUN_ID, STEP_NS, Rank, recording, write_manifest

IDENTITY = Identity(RUN_ID, 0, 0, {})


def drain(follower: RankFollower, *, final: bool = False) -> list[RankBatch]:
    batches = []
    while (batch := follower.next_batch(IDENTITY, final=final)) is not None:
        batches.append(batch)
    return batches


def catch_up(follower: RankFollower, *, final: bool = False) -> list[RankBatch]:
    batches, waits = [], True
    while waits:
        waits = follower.read(live=not final)
        batches += drain(follower, final=final and not waits)
    return batches


def steps_of(batches: list[RankBatch]) -> list[int]:
    return [step for batch in batches for step in batch.steps]


def given_by(batches: list[RankBatch]) -> list[int]:
    """Whole ones: the first after a gap may have begun in it."""
    return [row.step for batch in batches for row in batch.tables.steps if row.step in batch.steps]


def flat(node: Node, zero: int) -> list[tuple[object, ...]]:
    below = [row for child in node.children for row in flat(child, zero)]
    return [
        (node.name, node.key, zero + node.begin_at_ns, zero + node.end_at_ns, sorted(node.attributes.items())),
        *below,
    ]


def spans_of(batches: list[RankBatch]) -> list[tuple[object, ...]]:
    made = [tree for batch in batches for tree in trees(of_batch(batch), batch.steps, strays=batch.is_last)]
    return [row for tree in made for root in tree.roots for row in flat(root, tree.zero_unix_ns)]


def spans_at_once(root: Path) -> list[tuple[object, ...]]:
    made = [tree for rows in of_result(analyze_run(read_run(root))) for tree in trees(rows)]
    return [row for tree in made for top in tree.roots for row in flat(top, tree.zero_unix_ns)]


def follow_along(rank: Rank, steps: int) -> list[RankBatch]:
    """Look after every step, the end included."""
    follower, batches = RankFollower(rank.folder), []
    for k in range(steps):
        rank.step(k)
        if k:
            rank.late(k - 1)
        batches += catch_up(follower)
    rank.late(steps - 1)
    rank.recorder.close()
    return batches + catch_up(follower, final=True)


def test_following_gives_the_same_spans_as_reading_it_all_at_the_end(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    write_manifest(tmp_path)
    batches = follow_along(rank, 12)
    assert steps_of(batches) == list(range(12))
    assert len(batches) > 5  # in pieces
    whole = analyze_run(read_run(tmp_path))
    assert len(whole.collectives) == 12 * CALLS + 12  # the loss runs on in the next step, or outside
    assert {row.unit for batch in batches for row in batch.tables.collectives if row.unit} >= {"blocks.0"}
    assert spans_of(batches) == spans_at_once(tmp_path)


def test_a_step_is_given_out_once_the_next_one_has_ended(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        follower = RankFollower(rank.folder)
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
        follower = RankFollower(rank.folder)
        held = []
        for k in range(40):
            rank.steps(k, k + 1)
            follower.read(live=True)
            drain(follower)
            held.append(len(follower._held))
    assert max(held[10:]) <= max(held[:10])


def test_steps_said_after_the_first_update_are_the_steps(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        follower = RankFollower(rank.folder)
        rank.steps(0, 3)
        follower.read(live=True)
        assert follower.found() == 3
        assert drain(follower) == []  # it may still be said
        for k in range(2):
            rank.step(k, ended_by=StepEnd.SAID)
        follower.read(live=True)
        (batch,) = drain(follower)
        assert steps_of([batch]) == [0]
        assert {row.ended_by for row in batch.tables.steps} == {"said"}


def test_a_few_backwards_are_no_steps_until_it_is_clear_that_no_update_follows(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        follower = RankFollower(rank.folder)
        for k in range(20):
            rank.step(k, ended_by=StepEnd.BACKWARD)
        follower.read(live=True)
        assert drain(follower) == []
        assert follower.found() == 20  # which decides nothing
        for k in range(20, 66):
            rank.step(k, ended_by=StepEnd.BACKWARD)
        follower.read(live=True)
        assert steps_of(drain(follower)) == list(range(65))


def test_a_short_run_is_given_out_at_the_end(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        rank.steps(0, 2)
    follower = RankFollower(rank.folder)
    batches = catch_up(follower, final=True)
    assert steps_of(batches) == [0, 1]
    assert [batch.is_last for batch in batches] == [True]


def test_a_run_without_steps_ends_in_one_batch_of_what_is_outside(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        pass
    follower = RankFollower(rank.folder)
    follower.read(live=False)
    (batch,) = drain(follower, final=True)
    assert (len(batch.steps), batch.is_last) == (0, True)


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_follower, "BATCH_RECORDS", 60)
    with recording(tmp_path) as rank:
        rank.steps(0, 30)
    follower = RankFollower(rank.folder)
    batches = catch_up(follower, final=True)
    assert steps_of(batches) == list(range(30))
    assert max(len(batch.steps) for batch in batches) < 10


def test_a_completion_that_comes_steps_later_is_not_missed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_follower, "BATCH_RECORDS", 10)  # a step at a time
    with recording(tmp_path) as rank:
        rank.step(0)
        rank.steps(1, 8)
        rank.late(0, steps_later=5)
    follower = RankFollower(rank.folder)
    follower.read(live=False)
    first, *others = drain(follower, final=True)
    assert len(others) > 5
    loss = next(row for row in first.tables.collectives if row.seq == CALLS)
    assert loss.done_at_ns is not None


def test_a_file_that_goes_away_costs_nothing(tmp_path: Path) -> None:
    # GIVEN a follower that has given out steps and meets a file that cannot be read
    with recording(tmp_path) as rank:
        write_manifest(tmp_path)
        follower = RankFollower(rank.folder)
        rank.steps(0, 6)
        follower.read(live=True)
        batches = drain(follower)
        ghost = rank.folder / "records-99999.bin"
        ghost.mkdir()
        rank.steps(6, 9)
        follower.read(live=True)
        ghost.rmdir()
        batches += catch_up(follower)
    # THEN what follows is complete, and counted as if nothing had happened
    batches += catch_up(follower, final=True)
    assert spans_of(batches) == spans_at_once(tmp_path)


def test_records_that_are_let_go_behind_the_follower_cost_nothing(tmp_path: Path) -> None:
    # GIVEN a follower that keeps up with a rank whose oldest records go
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    follower, batches = RankFollower(rank.folder), []
    for first in range(0, 6000, 100):
        rank.steps(first, first + 100)
        give_way(rank.recorder)
        batches += catch_up(follower)
    rank.recorder.close()
    batches += catch_up(follower, final=True)
    # THEN every step was given out, though the first are gone by now, with its own numbers of collectives
    assert steps_of(batches) == list(range(6000))
    assert read_run(tmp_path).ranks[0].steps[0].ordinal > 100
    last = [row.ordinal for row in batches[-1].tables.collectives]
    assert max(last) == 6000 * CALLS - 1


def test_a_follower_that_is_left_behind_goes_on_with_what_is_there(tmp_path: Path) -> None:
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    follower = RankFollower(rank.folder)
    rank.steps(0, 10)
    follower.read(live=True)
    assert steps_of(drain(follower)) == list(range(9))
    for first in range(10, 6010, 100):
        rank.steps(first, first + 100)
        give_way(rank.recorder)
    rank.recorder.close()
    batches = catch_up(follower, final=True)
    since = read_run(tmp_path).ranks[0].steps[0].ordinal
    assert given_by(batches) == list(range(since, 6010))
    assert follower.found() == 6010
    # AND the steps in between are counted: the tenth was read, but not the one after it
    assert batches[-1].losses == Losses(unread_steps=since - 9)
    # AND calls are numbered from the first of the run
    last = batches[-1].tables.collectives[-1]
    assert (last.ordinal, last.turn) == (6010 * CALLS - 1, 6010 * CALLS - 1)
    # AND what describes the run, which is in the thinned file again, counts once
    assert {len(one.layouts) for batch in batches for one in batch.tables.facts.reducers} == {1}


def test_steps_that_were_read_before_others_were_let_go_are_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    follower = RankFollower(rank.folder)
    rank.steps(0, 10)
    follower.read(live=True)  # and whoever is to get them is busy
    write_in_time(rank, 10, 6010)
    rank.recorder.close()
    monkeypatch.setattr(rank_follower, "BATCH_RECORDS", 50)
    batches: list[RankBatch] = []
    while len(batches) < 3:  # between two of them it reads
        follower.read(live=False)
        if (batch := follower.next_batch(IDENTITY, final=False)) is not None:
            batches.append(batch)
    monkeypatch.undo()
    batches += catch_up(follower, final=True)
    since = read_run(tmp_path).ranks[0].steps[0].ordinal
    assert given_by(batches) == [*range(9), *range(since, 6010)]
    assert batches[-1].losses.unread_steps == since - 9


def write_in_time(rank: Rank, first: int, last: int) -> None:
    for begin in range(first, last, 100):
        rank.steps(begin, min(begin + 100, last))
        give_way(rank.recorder)


def test_a_late_start_gives_out_all_that_lies_on_the_disk_and_holds_little_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a rank that has filled its folder before anybody looks
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    write_in_time(rank, 0, 2600)
    files = len(list(rank.folder.glob("records-*.bin")))
    assert files > 9
    monkeypatch.setattr(rank_follower, "HELD_RECORDS", 100)
    monkeypatch.setattr(rank_follower, "BATCH_RECORDS", 1500)
    # WHEN it is followed by somebody who takes one batch after each read
    follower, batches, held, waits = RankFollower(rank.folder), [], [], True
    while waits:
        waits = follower.read(live=True)
        held.append(len(follower._held))
        if (batch := follower.next_batch(IDENTITY, final=False)) is not None:
            batches.append(batch)
    rank.recorder.close()
    batches += catch_up(follower, final=True)
    # THEN every step comes, and never was much more held than two files have
    assert steps_of(batches) == list(range(2600))
    assert batches[-1].losses == Losses()
    per_file = rank.recorder._store.segment_nbytes // RECORD_NBYTES
    assert max(held) <= 2.1 * per_file
    assert len(held) >= files / 2 - 1


class LateSlot:
    """A record whose slot is taken now, and written later: its thread lost the interpreter in between."""

    def __init__(self, rank: Rank) -> None:
        segment = rank.recorder.segment
        assert segment is not None
        self._segment, self._offset = segment, next(segment.offsets)

    def write(self, kind: Kind, begin: int, seq: int) -> None:
        EVENT.pack_into(self._segment.view, self._offset, kind, 0, 1, 0, begin, begin, seq, 0, 0, 0, 0, 0, 0, GUARD)


def test_a_slot_that_is_written_late_still_arrives(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        follower = RankFollower(rank.folder)
        rank.steps(0, 6)
        batches = catch_up(follower)
        # GIVEN the loss of step 6, whose completion has a slot and is not there yet
        rank.step(6)
        slot = LateSlot(rank)
        for _ in range(3):  # looks
            batches += catch_up(follower)
        # WHEN it is written at last
        slot.write(Kind.DONE, rank.begin + 7 * STEP_NS + 3 * MS, 7 * CALLS)
        rank.steps(7, 10)
        batches += catch_up(follower)
    batches += catch_up(follower, final=True)
    # THEN it was not passed over for good
    done = {row.seq: row.done_at_ns is not None for batch in batches for row in batch.tables.collectives}
    assert done[7 * CALLS]
    assert steps_of(batches) == list(range(10))
    assert batches[-1].losses == Losses()


@pytest.mark.parametrize("seed", range(12))
def test_whenever_it_looks_the_spans_are_those_of_reading_at_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    write_manifest(tmp_path)
    follower, batches = RankFollower(rank.folder), []

    def maybe_look() -> None:
        if chance.random() < 0.4:
            batches.extend(catch_up(follower))

    for k in range(30):
        rank.step(k)
        slot = LateSlot(rank)
        maybe_look()
        if chance.random() < 0.5:
            rank.recorder.event(Kind.PAUSE, 0, 0, rank.begin + k * STEP_NS, rank.begin + k * STEP_NS)
            maybe_look()
        slot.write(Kind.DONE, rank.begin + (k + 1) * STEP_NS + 3 * MS, (k + 1) * CALLS)
        maybe_look()
    rank.recorder.close()
    batches += catch_up(follower, final=True)
    assert spans_of(batches) == spans_at_once(tmp_path)
    assert batches[-1].losses == Losses()


def test_what_the_writer_dropped_and_what_a_kill_tore_is_counted(tmp_path: Path) -> None:
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    follower = RankFollower(rank.folder)
    # GIVEN three values out of range in a file that is finished since, and a record that was half written at the end
    for _ in range(3):
        rank.recorder.event(Kind.DONE, 0, 0, 1, 1, 2**70)
    write_in_time(rank, 0, 400)
    settled(rank.recorder)
    batches = catch_up(follower)
    slot = LateSlot(rank)
    slot.write(Kind.DONE, rank.begin, 1)
    slot._segment.view[slot._offset + RECORD_NBYTES - 1] ^= 0xFF  # not its last byte
    rank.steps(400, 403)
    batches += catch_up(follower)
    assert batches[-1].losses == Losses(unwritable=3)
    # WHEN the rank is gone without a word
    batches += catch_up(follower, final=True)
    assert batches[-1].losses == Losses(unwritable=3, torn=1)
    assert steps_of(batches) == list(range(403))
    rank.recorder.close()


def test_a_program_that_ends_no_step_is_held_within_bounds_and_what_goes_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_follower, "MOST_RECORDS", 200)
    with recording(tmp_path) as rank:
        follower = RankFollower(rank.folder)
        for k in range(1000):
            rank.recorder.event(Kind.PAUSE, 0, 0, rank.begin + k * MS, rank.begin + k * MS)
            if k % 50 == 0:
                catch_up(follower)
                assert len(follower._held) <= 200
        # AND of a step that began before what went, only a part is left: it is not given out
        rank.recorder.event(Kind.STEP, StepEnd.OPTIMIZER, 0, rank.begin, rank.begin + 1000 * MS, 0)
        for k in range(11, 15):
            rank.step(k)
    batches = catch_up(follower, final=True)
    assert steps_of(batches) == [11, 12, 13, 14]
    losses = batches[-1].losses
    assert 700 <= losses.unread_records <= 1000
    assert losses.unread_steps == 11


def test_sends_count_no_turn_after_what_was_forgotten_either(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        follower, batches = RankFollower(rank.folder), []
        op, group = (rank.recorder.intern(text) for text in ("send", "0"))
        for k in range(20):
            rank.steps(k, k + 1)
            at = rank.begin + k * STEP_NS + 95 * MS
            rank.recorder.event(Kind.CALL, 0, op, at, at, 1000 + k, 4, 0, group)
            batches += catch_up(follower)
    batches += catch_up(follower, final=True)
    last = {row.seq: row for row in batches[-1].tables.collectives}
    assert len(batches) > 5
    assert (last[20 * CALLS].ordinal, last[20 * CALLS].turn) == (20 * CALLS + 20 - 1, 20 * CALLS - 1)
    assert (last[1019].ordinal, last[1019].turn) == (20 * CALLS + 20 - 2, None)


def test_the_rest_is_counted_where_there_is_no_time_to_give_it_out(tmp_path: Path) -> None:
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    follower = RankFollower(rank.folder)
    rank.steps(0, 6)
    catch_up(follower)
    write_in_time(rank, 6, 500)
    rank.recorder.close()
    follower.count_the_rest()
    assert follower.found() == 500


def test_steps_that_were_not_recorded_are_not_missed_at_the_end(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        rank.steps(0, 5)
        for k in range(5, 20):
            rank.recorder.event(
                Kind.STEP, StepEnd.OPTIMIZER, 0, rank.begin + k * STEP_NS, rank.begin + (k + 1) * STEP_NS, k, 1
            )
    follower = RankFollower(rank.folder)
    follower.read(live=False)
    assert follower.found() == 5
    drain(follower, final=True)
    assert follower.found() == 5


def test_who_a_rank_is_is_open_until_rank_0_has_told_the_run(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 1, run_id="own")
    rank.recorder.close()
    assert read_identity(rank.folder, final=False) == Identity("own", 1, 0, _meta(rank))
    write_manifest(tmp_path, "the run's")
    assert read_identity(rank.folder, final=False) is None
    assert read_identity(rank.folder, final=True) == Identity("own", 1, 0, _meta(rank))
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
