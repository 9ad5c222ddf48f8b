"""What a diagnosis says of ranks that died, failed or ended, from the last of every rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptrace.analysis.diagnosis.diagnose import diagnose
from ddptrace.load.diagnosis.tables import JobState
from ddptrace.schema import Phase
from tests.unit.last_states import NOW, S, call, done, group, rank, said, verdicts

RESET = "RuntimeError: Connection reset by peer"


def test_a_death_and_what_waits_for_it_are_one_story() -> None:
    dead = rank(1, group(*done(7)), alive=False, beat_at_ns=60 * S)
    (one,), code = verdicts(rank(0, group(*done(7), call(7))), dead)
    assert (one.kind, one.absent, one.waiting, one.op, code) == ("died", (1,), (0,), "all_reduce", 4)
    assert one.sentence.endswith("40 s ago; rank 0 waits in all_reduce #7 of group 0")


def test_a_rank_that_failed_for_want_of_a_dead_one_waits_no_more_and_is_told_once() -> None:
    dead = rank(1, group(*done(7)), alive=False, beat_at_ns=60 * S, phase=Phase.DATA)
    gone = rank(0, group(*done(7), call(7)), closed=True, alive=False, failure=RESET, beat_at_ns=NOW)
    lines = said(gone, dead)
    assert lines[0].endswith("; rank 0 waited in all_reduce #7 of group 0")
    assert [line.split(":")[0] for line in lines[1:]] == [
        "  waited   rank 0", "  lost     rank 1", "", "rank 0 failed in step 5"
    ]  # fmt: skip


def test_ranks_that_the_launcher_ended_while_they_waited_are_told_apart_from_the_one_that_died() -> None:
    """Rank 2 had failed, and could not say so; rank 3 had not."""
    everybody = (0, 1, 2, 3)
    waits = group(*done(7), call(7), ranks=everybody)
    dead = rank(1, group(*done(7), ranks=everybody), alive=False, beat_at_ns=NOW - S)
    gone = rank(0, waits, closed=True, alive=False, failure=RESET, failed_at_ns=NOW, beat_at_ns=NOW)
    mute = rank(2, waits, alive=False, failure=RESET, failed_at_ns=NOW, beat_at_ns=NOW)
    found, code = verdicts(gone, dead, mute, rank(3, waits, alive=False, beat_at_ns=NOW))
    assert [(one.kind, one.absent) for one in found] == [("died", (1,)), ("failed-after", (0, 2)), ("killed", (3,))]
    assert "rank 3 ended too" in found[2].sentence and "the launcher" in found[2].sentence and code == 4


@pytest.mark.parametrize(("here", "ago"), [(True, "17 min ago"), (False, "2.0 s ago")])
def test_a_death_ages_also_once_the_job_is_over_where_it_ran_on_this_machine(here: bool, ago: str) -> None:
    """`alive`: of a process of another machine the system tells nothing."""
    dead = rank(1, group(*done(7)), alive=False, beat_at_ns=NOW - 2 * S)
    ended = rank(0, group(*done(7), call(7)), closed=True, alive=False if here else None, failure=RESET, beat_at_ns=NOW)
    found = diagnose(JobState((ended, dead), 2, NOW, 1000 * S)).verdicts
    assert (found[0].kind, found[0].waiting) == ("died", (0,))
    assert ago in found[0].sentence


def test_a_death_among_ranks_that_go_on_is_no_end_of_the_whole_job() -> None:
    found, _ = verdicts(rank(0, last_at_ns=NOW), rank(1, alive=False, beat_at_ns=NOW - S))
    assert [(one.kind, one.absent) for one in found] == [("died", (1,))]


def test_a_rank_that_died_long_before_the_whole_job_was_killed_is_told_apart() -> None:
    first = rank(1, group(*done(7)), alive=False, beat_at_ns=60 * S)
    rest = [rank(k, group(*done(7), call(7), ranks=(0, 1, 2)), alive=False) for k in (0, 2)]
    first = replace(first, groups=(group(*done(7), ranks=(0, 1, 2)),))
    found, code = verdicts(rest[0], first, rest[1])
    assert [(one.kind, one.absent) for one in found] == [("died", (1,)), ("killed", (0, 2))] and code == 4


def test_what_hung_when_all_were_killed_is_not_explained_by_their_end() -> None:
    ahead = rank(0, group(*done(7), call(7)), alive=False)
    found, code = verdicts(ahead, rank(1, group(*done(7)), alive=False))
    assert [(one.kind, one.absent) for one in found] == [("stuck", (1,)), ("killed", (0, 1))] and code == 4


def test_the_first_exception_that_is_its_own_comes_before_a_peers_and_before_who_was_ended_for_it() -> None:
    own = rank(2, closed=True, failure="ValueError: bad", failed_at_ns=70 * S)
    peer = rank(0, closed=True, failure="RuntimeError: Connection reset by peer", failed_at_ns=69 * S)
    found, code = verdicts(peer, rank(1, alive=False), own)
    assert [(one.kind, one.absent) for one in found] == [("failed", (2,)), ("failed-after", (0,)), ("killed", (1,))]
    assert found[0].sentence == "rank 2 failed in step 5: ValueError: bad" and code == 4


def test_a_run_that_nobody_writes_any_more_and_whose_processes_are_not_in_sight_is_no_healthy_one() -> None:
    ranks = [rank(k, group(*done(7)), alive=None, last_at_ns=NOW, beat_at_ns=NOW) for k in (0, 1)]
    found = diagnose(JobState(tuple(ranks), 2, NOW, 3600 * S))
    assert [one.kind for one in found.verdicts] == ["left"] and found.exit_code == 4


def test_a_process_that_is_there_and_records_not_even_the_time_is_held() -> None:
    silent = rank(1, group(*done(7)), beat_at_ns=NOW - 20 * S)
    (one,), code = verdicts(rank(0, group(*done(7), call(7))), silent)
    assert (one.kind, one.absent, one.waiting, code) == ("held", (1,), (0,), 3) and "interpreter" in one.likely


def test_ranks_that_ended_are_well_whatever_one_of_them_launched_last() -> None:
    ranks = (rank(0, group(*done(7), call(7, done=None)), closed=True), rank(1, group(*done(7)), closed=True))
    (one,), code = verdicts(*ranks)
    assert (one.kind, code) == ("ended", 0)


def test_of_ranks_that_ended_at_once_the_one_that_stopped_training_first_is_told_and_no_more_than_that() -> None:
    first, other = rank(1, alive=False, last_at_ns=NOW - S // 10), rank(0, alive=False, last_at_ns=NOW - S // 50)
    found, code = verdicts(other, first)
    assert [(one.kind, one.absent, code) for one in found] == [("killed", (0, 1), 4)]
    assert "; rank 1 stopped recording its training 80.0 ms before the others" in found[0].sentence
    assert found[0].sentence.endswith("it may have failed first")
    for unsure in (replace(other, last_at_ns=NOW - S // 10 + 10**6), replace(other, host="another")):
        assert "the first" not in verdicts(unsure, first)[0][0].sentence
