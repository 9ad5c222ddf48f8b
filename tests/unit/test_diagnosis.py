"""What a diagnosis says of the last of every rank, made by hand. Times in seconds since the run's zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddptrace.analysis.diagnosis.diagnose import diagnose
from ddptrace.load.tables import Pulse
from ddptrace.render.diagnosis import diagnosis_text
from ddptrace.schema import Phase
from tests.unit.last_states import NOW, S, call, done, group, job, messages, rank, said, verdicts

# Ranks that have not come ---------------------------------------------------------------------------------------------


def test_the_rank_that_has_not_called_what_the_others_wait_in_is_named_with_its_age() -> None:
    (one,), code = verdicts(rank(0, group(*done(7), call(7))), rank(1, group(*done(7))))
    assert (one.kind, one.waiting, one.absent, one.turn, one.age_ns, code) == ("stuck", (0,), (1,), 7, 40 * S, 3)
    assert one.sentence == "rank 1 has not arrived: all_reduce #7 (16 B) of group 0, for 40 s"


@pytest.mark.parametrize(("step_s", "kind"), [(0.1, "stuck"), (3.9, "stuck"), (4.1, "slow")])
def test_a_rank_is_only_slow_until_ten_steps_have_gone_by(step_s: float, kind: str) -> None:
    ahead, behind = rank(0, group(*done(7), call(7))), rank(1, group(*done(7)))
    found, code = verdicts(ahead, replace(behind, step_ns=round(step_s * S)))
    assert (found[-1].kind, code) == (kind, 3 if kind == "stuck" else 0)


def test_a_rank_is_only_slow_for_the_first_five_seconds() -> None:
    young = rank(0, group(*done(7), call(7, at=95.1)))
    assert [one.kind for one in verdicts(young, rank(1, group(*done(7))))[0]] == ["well", "slow"]


def test_a_pulse_tells_in_which_phase_and_line_the_absent_rank_is() -> None:
    pulse = Pulse(NOW - S, Phase.DATA, "data.py:12 in __getitem__", "ssl.py:3 in read", 7, 0)
    asleep = rank(1, group(*done(7)), pulse=pulse, phase=Phase.DATA)
    (one,), _ = verdicts(rank(0, group(*done(7), call(7))), asleep)
    assert one.where == ("step 5, data: data.py:12 in __getitem__, there in ssl.py:3 in read",)
    assert one.likely == "its data loader does not return"


def test_a_pulse_outside_of_any_phase_tells_the_line_of_the_program() -> None:
    pulse = Pulse(NOW - S, None, "train.py:30 in main", "train.py:30 in main", 7, 0)
    busy = rank(1, group(*done(7)), pulse=pulse)
    (one,), _ = verdicts(rank(0, group(*done(7), call(7))), busy)
    assert one.where == ("step 5: train.py:30 in main",) and "the program does not return" in one.likely
    said = diagnosis_text(diagnose(job(rank(0, group(*done(7), call(7))), busy))).splitlines()
    assert said[2] == "  absent   rank 1: step 5: train.py:30 in main (for 40 s; alive)"


def test_a_job_whose_ranks_wait_as_ever_is_said_to_go_on_before_who_waits_for_whom() -> None:
    pulse = Pulse(NOW - S, Phase.DATA, "data.py:12 in __getitem__", "data.py:12 in __getitem__", 7, 0)
    asleep = rank(1, group(*done(7)), pulse=pulse, phase=Phase.DATA)
    lines = said(rank(0, group(*done(7), call(7, at=99.9))), asleep)
    assert lines[0] == "ranks 0 and 1 go on, in step 5; none has waited for longer than 5.0 s yet"
    assert lines[2] == "just now rank 1 has not arrived: all_reduce #7 (16 B) of group 0, for 0.1 s"
    assert lines[4].startswith("  awaited  rank 1: step 5, data: data.py:12") and len(lines) == 5


def test_ranks_before_their_first_step_are_said_to_start() -> None:
    young: dict[str, Any] = {"step": 0, "step_ns": None, "last_at_ns": NOW - S}
    imports = Pulse(NOW - S, None, "<string>:0 in <module>", "<string>:0 in <module>", 7, 0)
    lines = said(rank(0, group(call(0, at=99)), **young), rank(1, group(), pulse=imports, **young))
    assert lines[0].startswith("ranks 0 and 1 go on, and none has ended a step yet: as a rule the job is starting")
    assert lines[4] == "  awaited  rank 1: step 0 (for 1.0 s; alive)"


@pytest.mark.parametrize(
    ("site", "innermost", "told"),
    [
        ("train.py:44 in train", "selectors.py:415 in _PollLikeSelector.select", "a worker process of its data loader"),
        ("data.py:9 in Set.__getitem__", "selectors.py:415 in _PollLikeSelector.select", "does not return"),
        ("train.py:44 in train", "ssl.py:3 in read", "does not return"),
    ],
)
def test_a_loader_that_waits_for_its_worker_is_told_from_one_that_reads_itself(
    site: str, innermost: str, told: str
) -> None:
    asleep = rank(1, group(*done(7)), pulse=Pulse(NOW - S, Phase.DATA, site, innermost, 7, 0), phase=Phase.DATA)
    (one,), _ = verdicts(rank(0, group(*done(7), call(7))), asleep)
    assert told in one.likely


def test_what_a_rank_in_a_collective_is_blocked_in_is_not_told_beside_it() -> None:
    pulse = Pulse(NOW - S, None, "t.py:7 in f", "torch/distributed/c10d.py:9 in wait", 7, 0)
    waits = rank(0, group(*done(7), call(7)), pulse=pulse)
    said = diagnosis_text(diagnose(job(waits, rank(1, group(*done(7)))))).splitlines()
    assert said[1] == "  waits    rank 0: step 5, in all_reduce #7 (16 B) of group 0, at t.py:7 in f (for 40 s; alive)"


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


def test_the_line_of_a_library_stands_beside_that_of_the_program_of_a_rank_that_waits_in_it() -> None:
    waits = call(7, through="framework/loop.py:3 in run")
    pulse = Pulse(60 * S, Phase.FORWARD, "t.py:7 in f", "framework/comm.py:9 in reduce", 8, 0)
    elsewhere = replace(pulse, site="t.py:99 in g")
    for fields, line in (
        ({}, "at t.py:7 in f, through framework/loop.py:3 in run"),
        ({"pulse": pulse}, "at t.py:7 in f, through framework/loop.py:3 in run"),
        ({"pulse": elsewhere}, "at t.py:99 in g"),  # it waits for the call at another line
    ):
        text = diagnosis_text(diagnose(job(rank(0, group(*done(7), waits), **fields), rank(1, group(*done(7))))))
        assert f"in all_reduce #7 (16 B) of group 0, {line} (" in text


def test_a_mismatch_names_the_lines_of_the_program_and_of_the_library_on_both_sides() -> None:
    ahead = rank(0, group(*done(7), call(7, through="framework/loop.py:3 in run")))
    other = rank(1, group(*done(7), call(7, "broadcast", peer=0, through="framework/loop.py:5 in run"), call(8)))
    (one,), _ = verdicts(ahead, other)
    assert "broadcast of 16 B on rank 1 at t.py:7 in f, through framework/loop.py:5 in run, and" in one.sentence
    assert one.sentence.endswith("on rank 0 at t.py:7 in f, through framework/loop.py:3 in run")


def test_a_mismatch_comes_before_the_failures_that_it_led_to() -> None:
    failure = "RuntimeError: Connection closed by peer"
    ranks = [rank(k, group(*done(7), call(7, nbytes=16 + 16 * k)), closed=True, failure=failure) for k in (0, 1)]
    found, code = verdicts(*ranks)
    assert [one.kind for one in found] == ["mismatch", "failed-after"] and code == 4


def test_a_call_that_one_rank_leaves_out_of_every_step_is_told_of_it_and_of_all_that_wait_there() -> None:
    """Each bucket and the loss are usual. What always came next tells which of them is right."""
    sizes = [42, 41, 21, 4]
    before = [call(turn, nbytes=sizes[turn % 4], done=True, at=50) for turn in range(24 + 3)]
    bucket: dict[str, Any] = {"origin": "gradients", "site": None, "bucket_of": "DistributedDataParallel", "done": None}
    everybody = (0, 1, 2)
    skips = group(*before, *(call(27 + k, nbytes=sizes[k], **bucket) for k in range(3)), ranks=everybody)
    waits = [rank(k, group(*before, call(27, nbytes=4), ranks=everybody)) for k in (0, 2)]
    (one,), _ = verdicts(waits[0], rank(1, skips), waits[1])
    assert (one.kind, one.waiting, one.absent, one.likely) == (
        "mismatch", (0, 2), (1,), "rank 1 did not make the call of ranks 0 and 2"
    )  # fmt: skip
    assert one.sentence == (
        "call #27 of group 0 is all_reduce of 42 B on rank 1 in its backward (bucket of DistributedDataParallel), and"
        " all_reduce of 4 B on ranks 0 and 2 at t.py:7 in f"
    )


# Messages -------------------------------------------------------------------------------------------------------------


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


# In words -------------------------------------------------------------------------------------------------------------


def test_many_ranks_in_one_place_take_one_line() -> None:
    everybody = tuple(range(64))
    ranks = [rank(k, group(*done(7), *([call(7)] if k != 3 else []), ranks=everybody)) for k in everybody]
    lines = diagnosis_text(diagnose(job(*ranks))).splitlines()
    assert lines[0] == "rank 3 has not arrived: all_reduce #7 (16 B) of group 0, for 40 s"
    assert lines[1].startswith("  waits    ranks 0, 1, 2 and 4 to 63: step 5, in all_reduce #7")
    assert len(lines) == 3


def test_what_a_terminal_would_obey_is_not_passed_on() -> None:
    evil = call(7, site="\x1b[2Jt.py:7 in f")
    assert "\x1b" not in diagnosis_text(diagnose(job(rank(0, group(evil)), rank(1, group(ranks=(0, 1))))))


# Ranks of which nothing is here ---------------------------------------------------------------------------------------


def test_of_a_job_that_is_over_the_ranks_without_a_folder_are_named_and_the_rest_did_not_end_as_it_should() -> None:
    ended = [rank(k, group(*done(7), ranks=(0, 1, 2, 3)), closed=True, alive=False) for k in (0, 2)]
    found, code = verdicts(*ended, size=4)
    assert [(one.kind, one.absent) for one in found] == [("missing", (1, 3)), ("ended", ())] and code == 4
    assert found[0].sentence == "no records of ranks 1 and 3 are here; 4 ranks took part"
    assert found[1].sentence == "ranks 0 and 2 ended"
    lines = said(*ended, size=4)
    assert lines[1].startswith("  lost     ranks 1 and 3: it left no records here") and len(lines) == 7


def test_a_rank_without_a_folder_is_no_loss_while_the_others_go_on() -> None:
    found, code = verdicts(rank(0, group(*done(7)), last_at_ns=NOW), size=2)
    assert [(one.kind, one.absent) for one in found] == [("well", ()), ("unseen", (1,))] and code == 0


def test_a_rank_without_a_folder_that_others_wait_for_is_told_once() -> None:
    (one,), code = verdicts(rank(0, group(call(0), ranks=(0, 1))), size=2)
    assert (one.kind, one.absent, code) == ("stuck", (1,), 3)
