"""What a diagnosis says of the last of every rank, made by hand. Times in seconds since the run's zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddptrace.analysis.diagnosis import diagnose
from ddptrace.analysis.diagnosis_tables import Verdict
from ddptrace.load.tables import GroupState, JobState, LastCall, Messages, Pulse, RankState
from ddptrace.render.diagnosis import diagnosis_text
from ddptrace.schema import Phase

S = 10**9
NOW = 100 * S
STEP_NS = S // 10


def call(turn: int, op: str = "all_reduce", *, at: float = 60, **fields: Any) -> LastCall:
    known: dict[str, Any] = {
        "seq": turn + 1, "nbytes": 16, "dtype": "float32", "peer": None, "origin": "program", "site": "t.py:7 in f",
        "module": None, "bucket_of": None, "is_sync": True, "done": False, "error": None,
    }  # fmt: skip
    return LastCall(turn=turn, op=op, launch_at_ns=round(at * S), **(known | fields))


def group(
    *calls: LastCall, name: str = "0", ranks: tuple[int, ...] = (0, 1), turns: int | None = None, **fields: Any
) -> GroupState:
    end = calls[-1].turn + 1 if calls else 0
    return GroupState(name, ranks, end if turns is None else turns, calls, **fields)


def done(count: int) -> list[LastCall]:
    return [call(turn, done=True, at=50) for turn in range(count)]


def rank(number: int, *groups: GroupState, **fields: Any) -> RankState:
    """One that runs and recorded its training last at second 60. It is in its newest call, if that is not done."""
    newest = [(one.name, last) for one in groups for last in one.calls[-1:] if last.done is False]
    name, pending = max(newest, key=lambda one: one[1].launch_at_ns, default=("", None))
    known: dict[str, Any] = {
        "host": "node0", "pid": 100 + number, "alive": True, "stopped": False, "closed": False, "counted": True,
        "step": 5, "step_ns": STEP_NS, "phase": None, "did_last": "", "pending": pending, "pending_group": name,
        "pulse": None, "last_at_ns": 60 * S, "beat_at_ns": NOW - S, "failure": None, "failed_at_ns": None,
    }  # fmt: skip
    return RankState(rank=number, groups=groups, **(known | fields))


def job(*ranks: RankState, now: int = NOW, size: int | None = None) -> JobState:
    return JobState(ranks, len(ranks) if size is None else size, now, 0)


def verdicts(*ranks: RankState, **fields: Any) -> tuple[list[Verdict], int]:
    found = diagnose(job(*ranks, **fields))
    return list(found.verdicts), found.exit_code


# Ranks that have not come ---------------------------------------------------------------------------------------------


def test_the_rank_that_has_not_called_what_the_others_wait_in_is_named_with_its_age() -> None:
    (one,), code = verdicts(rank(0, group(*done(7), call(7))), rank(1, group(*done(7))))
    assert (one.kind, one.waiting, one.absent, one.turn, one.age_ns, code) == ("stuck", (0,), (1,), 7, 40 * S, 3)
    assert one.sentence == "rank 1 has not arrived: all_reduce #7 (16 B) of group 0, for 40 s"


@pytest.mark.parametrize(("step_s", "kind"), [(0.1, "stuck"), (3.9, "stuck"), (4.1, "slow")])
def test_a_rank_is_only_slow_until_ten_steps_have_gone_by(step_s: float, kind: str) -> None:
    ahead, behind = rank(0, group(*done(7), call(7))), rank(1, group(*done(7)))
    (one,), code = verdicts(ahead, replace(behind, step_ns=round(step_s * S)))
    assert (one.kind, code) == (kind, 3 if kind == "stuck" else 0)


def test_a_rank_is_only_slow_for_the_first_five_seconds() -> None:
    young = rank(0, group(*done(7), call(7, at=95.1)))
    assert [one.kind for one in verdicts(young, rank(1, group(*done(7))))[0]] == ["slow"]


def test_a_pulse_tells_in_which_phase_and_line_the_absent_rank_is() -> None:
    pulse = Pulse(NOW - S, Phase.DATA, "data.py:12 in __getitem__", "ssl.py:3 in read", 7, 0)
    asleep = rank(1, group(*done(7)), pulse=pulse, phase=Phase.DATA)
    (one,), _ = verdicts(rank(0, group(*done(7), call(7))), asleep)
    assert one.where == ("step 5, data, at data.py:12 in __getitem__",)
    assert one.likely == "its data loader does not return"


def test_a_root_that_is_done_with_its_broadcast_waits_for_nobody() -> None:
    root = rank(0, group(*done(7), call(7, "broadcast", done=True)))
    (one,), code = verdicts(root, rank(1, group(*done(7)), last_at_ns=NOW - S))
    assert (one.kind, code) == ("well", 0)


def test_a_rank_that_ended_before_the_others_is_told_so() -> None:
    ended = rank(1, group(*done(7)), closed=True)
    (one,), code = verdicts(rank(0, group(*done(7), call(7))), ended)
    assert (one.kind, one.absent, code) == ("stuck", (1,), 3) and "uneven inputs" in one.likely


def test_a_member_of_the_group_without_a_folder_is_absent() -> None:
    (one,), _ = verdicts(rank(0, group(call(0), ranks=(0, 1))), size=2)
    assert one.absent == (1,) and "left no records here" in one.where[0]


def test_the_rank_that_waits_for_nobody_comes_before_the_chain_that_waits_for_it() -> None:
    """Rank 0 waits for 1, which waits for 2 in another group."""
    one = rank(0, group(*done(3), call(3), name="a", ranks=(0, 1)))
    two = rank(1, group(*done(3), name="a", ranks=(0, 1)), group(call(0, at=61), name="b", ranks=(1, 2)))
    three = rank(2, group(name="b", ranks=(1, 2)))
    found, _ = verdicts(one, two, three)
    assert [(each.group, each.absent) for each in found] == [("b", (2,)), ("a", (1,))]


def test_two_groups_in_different_order_on_two_ranks_are_told_as_a_circle() -> None:
    one = rank(0, group(call(0), name="a"), group(name="b"))
    two = rank(1, group(name="a"), group(call(0), name="b"))
    found, code = verdicts(one, two)
    assert [each.absent for each in found] == [(1,), (0,)] and code == 3
    assert all(each.likely.startswith("they wait for each other") for each in found)


def test_groups_of_one_name_and_different_ranks_are_not_taken_for_one() -> None:
    pairs = [
        rank(
            k,
            group(
                *(call(turn, done=None, at=50) for turn in range(k // 2 + 1)),
                name="1",
                ranks=(k // 2 * 2, k // 2 * 2 + 1),
            ),
            last_at_ns=NOW,
        )
        for k in range(4)
    ]
    assert [one.kind for one in verdicts(*pairs)[0]] == ["well"]


def test_a_collective_that_all_have_called_and_that_does_not_end_blames_nobody() -> None:
    (one,), code = verdicts(rank(0, group(call(7))), rank(1, group(call(7, at=61))))
    assert (one.kind, one.waiting, one.absent, one.age_ns, code) == ("stuck", (0, 1), (), 39 * S, 3)


def test_ranks_whose_calls_were_not_all_recorded_are_not_compared() -> None:
    waiting = rank(0, group(*done(7), call(7)), counted=False)
    (one,), code = verdicts(waiting, rank(1, group(*done(7)), counted=False))
    assert (one.kind, one.waiting, one.absent, code) == ("stuck", (0,), (), 3)
    assert "not recorded" in one.likely


def test_ranks_that_all_sleep_with_nobody_waiting_are_told() -> None:
    asleep = [rank(k, group(*done(7)), last_at_ns=30 * S) for k in (0, 1)]
    (one,), code = verdicts(*asleep)
    assert (one.kind, one.absent, one.age_ns, code) == ("stuck", (0, 1), 70 * S, 3)


# What they called -----------------------------------------------------------------------------------------------------


def test_a_mismatch_is_told_once_and_nobody_is_called_absent_for_it() -> None:
    ahead = rank(0, group(*done(7), call(7)))
    other = rank(1, group(*done(7), call(7, "broadcast", peer=0, site="t.py:9 in f"), call(8)))
    (one,), code = verdicts(ahead, other)
    assert (one.kind, one.turn, one.absent, code) == ("mismatch", 7, (1,), 3)
    assert "broadcast of 16 B on rank 1 at t.py:9 in f, and all_reduce of 16 B on rank 0" in one.sentence


def test_a_mismatch_comes_before_the_failures_that_it_led_to() -> None:
    failure = "RuntimeError: Connection closed by peer"
    ranks = [rank(k, group(*done(7), call(7, nbytes=16 + 16 * k)), closed=True, failure=failure) for k in (0, 1)]
    found, code = verdicts(*ranks)
    assert [one.kind for one in found] == ["mismatch", "failed-after"] and code == 4


# Messages -------------------------------------------------------------------------------------------------------------


def messages(peer: int, *calls: LastCall) -> Messages:
    return Messages(peer, calls[0].op == "send", calls[-1].turn + 1, calls)


@pytest.mark.parametrize(("op", "word"), [("send", "received"), ("recv_", "sent")])
def test_a_message_without_its_other_half_names_the_rank_that_owes_it(op: str, word: str) -> None:
    pending = call(1, op, peer=1)
    first, theirs = call(0, op, peer=1, done=True), call(0, "recv_" if op == "send" else "send", peer=0, done=True)
    one = rank(0, group(messages=(messages(1, first, pending),)), pending=pending, pending_group="0")
    (told,), code = verdicts(one, rank(1, group(messages=(messages(0, theirs),))))
    assert (told.kind, told.turn, told.waiting, told.absent, code) == ("message", 1, (0,), (1,), 3)
    assert told.sentence.startswith(f"rank 1 has not {word} it: rank 0 is in {op.rstrip('_')} #1 (16 B)")


def test_a_message_from_a_rank_that_never_called_in_the_group_is_missed_too() -> None:
    pending = call(0, "recv_", peer=1)
    one = rank(0, group(messages=(messages(1, pending),)), pending=pending, pending_group="0")
    assert [(each.kind, each.absent) for each in verdicts(one, rank(1))[0]] == [("message", (1,))]


def test_a_send_that_nobody_waits_in_is_no_fault() -> None:
    sent = group(messages=(messages(1, call(0, "send", peer=1, done=None)),))
    assert [one.kind for one in verdicts(rank(0, sent, last_at_ns=NOW), rank(1, group()))[0]] == ["well"]


# Ranks that are no more -----------------------------------------------------------------------------------------------


def test_a_death_and_what_waits_for_it_are_one_story() -> None:
    dead = rank(1, group(*done(7)), alive=False, beat_at_ns=60 * S)
    (one,), code = verdicts(rank(0, group(*done(7), call(7))), dead)
    assert (one.kind, one.absent, one.waiting, one.op, code) == ("died", (1,), (0,), "all_reduce", 4)
    assert one.sentence.endswith("40 s ago; rank 0 waits in all_reduce #7 of group 0")


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


# In words -------------------------------------------------------------------------------------------------------------


def test_many_ranks_in_one_place_take_one_line() -> None:
    everybody = tuple(range(64))
    ranks = [rank(k, group(*done(7), *([call(7)] if k != 3 else []), ranks=everybody)) for k in everybody]
    lines = diagnosis_text(diagnose(job(*ranks))).splitlines()
    assert lines[0] == "rank 3 has not arrived: all_reduce #7 (16 B) of group 0, for 40 s"
    assert lines[1].startswith("  waits    ranks 0, 1, 2, 4, 5 and 58 more: step 5, in all_reduce #7")
    assert len(lines) == 3


def test_what_a_terminal_would_obey_is_not_passed_on() -> None:
    evil = call(7, site="\x1b[2Jt.py:7 in f")
    assert "\x1b" not in diagnosis_text(diagnose(job(rank(0, group(evil)), rank(1, group(ranks=(0, 1))))))
