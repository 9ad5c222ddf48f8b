"""Which calls on different ranks were one collective, and when that must not be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from analysis_records import call, gpu_call, hook, rank, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.findings import Finding
from ddptrace.load.tables import Call, Group, Identity, RankRun

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Ran:
    """A collective on one rank, in milliseconds."""

    begin: float
    end: float
    op: str = "all_reduce"
    nbytes: int = 64
    group: str = "0"


def calls(rans: Sequence[Ran], shift_ms: float = 0) -> list[Call]:
    def at(ms: float) -> int:
        return round((ms + shift_ms) * MS)

    return [
        gpu_call(
            seq, at(ran.begin - 1), (at(ran.begin), at(ran.end)), op=ran.op, group=ran.group, ordinal=seq - 1,
            nbytes_in=ran.nbytes, nbytes_out=ran.nbytes,
            identity=Identity.RECORDED if ran.nbytes else Identity.ANNOTATION,
        )
        for seq, ran in enumerate(rans, 1)
    ]  # fmt: skip


def foreign(*ranks: Sequence[Ran], shifts_ms: Sequence[float] = (), **fields: Any) -> Result:
    """Ranks 0, 1, ... of files that nobody of us recorded; `shifts_ms`: how wrong each one's clock is."""
    known = {"recorded": False, "groups": ()} | fields
    shifted = enumerate(zip(ranks, list(shifts_ms) or [0.0] * len(ranks), strict=True))
    made = [rank(number, calls=calls(rans, shift), **known) for number, (rans, shift) in shifted]
    return analyze_run(run(*made, world_size=len(ranks)))


def recorded(*ranks: RankRun) -> Result:
    return analyze_run(run(*ranks, world_size=len(ranks)))


def refusals(result: Result) -> list[Finding]:
    return [finding for finding in result.findings if finding.code == "match-refused"]


TOGETHER = [Ran(10, 20), Ran(30, 50, "all_to_all_single"), Ran(90, 95), Ran(140, 160, nbytes=8)]
LATE = [Ran(18, 20), Ran(30, 50, "all_to_all_single"), Ran(94, 95), Ran(120, 160, nbytes=8)]


def test_ranks_that_end_together_and_start_apart_are_matched_in_launch_order() -> None:
    result = foreign(TOGETHER, LATE)
    assert not refusals(result)
    assert [(row.op, row.ordinal, row.ranks, row.seqs) for row in result.matches] == [
        ("all_reduce", 0, (0, 1), (1, 1)), ("all_to_all_single", 1, (0, 1), (2, 2)),
        ("all_reduce", 2, (0, 1), (3, 3)), ("all_reduce", 3, (0, 1), (4, 4)),
    ]  # fmt: skip
    row = result.matches[0]
    assert (row.match, row.group, row.nbytes, row.transfer_ns) == (0, "0", 64, 2 * MS)
    assert (row.first_start_at_ns, row.last_start_at_ns) == (10 * MS, 18 * MS)
    assert (row.first_end_at_ns, row.last_end_at_ns) == (20 * MS, 20 * MS)
    assert [row.match for row in result.collectives] == [0, 1, 2, 3] * 2
    assert [row.match for row in result.matches] == [0, 1, 2, 3]


def test_a_clock_that_is_a_little_wrong_does_not_hinder() -> None:
    result = foreign(TOGETHER, LATE, shifts_ms=(0, 7))
    assert len(result.matches) == 4
    assert result.matches[0].last_end_at_ns == 27 * MS


def test_a_long_transfer_may_end_on_one_rank_a_little_later() -> None:
    long = [Ran(0, 1000), Ran(1100, 2100), Ran(2200, 3200)]
    assert len(foreign(long, [Ran(0, 1090), Ran(1100, 2110), Ran(2200, 3280)]).matches) == 3
    assert not foreign(long, [Ran(0, 1190), Ran(1100, 2110), Ran(2200, 3390)]).matches


def test_ends_that_have_nothing_to_do_with_each_other_are_refused() -> None:
    other = [Ran(10, 20), Ran(30, 79, "all_to_all_single"), Ran(90, 125), Ran(140, 200, nbytes=8)]
    result = foreign(TOGETHER, other)
    assert not result.matches
    assert {row.match for row in result.collectives} == {None}
    (finding,) = refusals(result)
    assert finding.severity == "warning"
    assert "do not end together" in finding.message
    assert "ranks 0 and 1" in finding.message


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (TOGETHER[:3], "rank 1 shows 3 of them and rank 0 4"),
        (
            [*TOGETHER[:2], Ran(90, 95, "broadcast"), TOGETHER[3]],
            "ordinal 2 is all_reduce on rank 0 and broadcast on rank 1",
        ),
        (
            [*TOGETHER[:3], Ran(140, 160, nbytes=9)],
            "ordinal 3, all_reduce, has 8 bytes on rank 0 and 9 bytes on rank 1",
        ),
    ],
)
def test_files_that_show_different_collectives_are_refused_with_the_reason(other: list[Ran], said: str) -> None:
    result = foreign(TOGETHER, other)
    assert not result.matches
    assert said in refusals(result)[0].message


def test_bytes_that_are_unknown_or_may_differ_by_rank_do_not_hinder() -> None:
    mine = [Ran(10, 20, nbytes=64), Ran(30, 50, "all_to_all_single", 100)]
    theirs = [Ran(15, 20, nbytes=0), Ran(40, 50, "all_to_all_single", 70)]
    assert [row.nbytes for row in foreign(mine, theirs).matches] == [64, None]


def test_a_file_that_begins_one_step_later_is_not_taken_for_a_wrong_clock() -> None:
    periodic = [Ran(100 * k, 100 * k + 10) for k in range(6)]
    steps = [step(k, (100 * k - 50) * MS, (100 * k + 50) * MS) for k in range(8)]
    behind = [Ran(ran.begin + 100, ran.end + 100) for ran in periodic]
    one, other = calls(periodic), calls(behind)
    result = analyze_run(run(
        rank(0, calls=one, steps=steps, recorded=False), rank(1, calls=other, steps=steps, recorded=False)
    ))  # fmt: skip
    assert not result.matches
    assert "100 ms apart" in refusals(result)[0].message


def numbered(*ranks: Sequence[tuple[int, Ran]]) -> Result:
    """Files whose collectives have the backend's numbers; even intervals, so that nothing else tells which is which."""
    made = [
        [replace(one, turn=turn) for one, (turn, _) in zip(calls([ran for _, ran in mine]), mine, strict=True)]
        for mine in ranks
    ]
    return recorded(*(rank(number, calls=mine, recorded=False, groups=()) for number, mine in enumerate(made)))


EVEN = [(turn, Ran(100 * turn, 100 * turn + 10)) for turn in range(7, 14)]


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_the_backends_numbers_match_files_that_begin_at_different_steps(shift: int) -> None:
    result = numbered(EVEN, EVEN[shift:])
    assert not refusals(result)
    assert [(row.ordinal, row.seqs) for row in result.matches] == [
        (turn, (turn - 6, turn - 6 - shift)) for turn in range(7 + shift, 14)
    ]


def test_files_without_a_number_in_common_are_refused() -> None:
    result = numbered(EVEN[:3], EVEN[4:])
    assert not result.matches
    assert "by their numbers, no collective is in the files of all ranks" in refusals(result)[0].message


def test_one_number_of_different_collectives_is_refused() -> None:
    other = [(turn, replace(ran, op="broadcast") if turn == 9 else ran) for turn, ran in EVEN]
    result = numbered(EVEN, other[1:])
    assert not result.matches
    assert "all_reduce on rank 0 and broadcast on rank 1" in refusals(result)[0].message


def test_numbers_that_coalesced_collectives_share_match_nothing() -> None:
    shared = [(turn // 2, ran) for turn, ran in EVEN]
    assert not numbered(shared, shared[1:]).matches
    assert len(numbered(shared, shared).matches) == len(EVEN)


UNEVEN = [0, 100, 130, 290, 310, 480, 500, 640, 720, 760]  # ms: no part of it looks like another


def test_uneven_ends_fit_in_one_order_only_so_that_a_clock_may_be_wrong_by_much() -> None:
    mine = [Ran(at + 10, at + 20) for at in UNEVEN]
    theirs = [Ran(at + 15, at + 20.01 * (1 + at / 1e8)) for at in UNEVEN]
    result = foreign(mine, theirs, mine, shifts_ms=(0, 50, 0))
    assert not refusals(result)
    assert [row.seqs for row in result.matches] == [(k, k, k) for k in range(1, 11)]


def test_a_file_that_begins_later_is_refused_though_its_ends_are_uneven() -> None:
    mine = [Ran(at + 10, at + 20) for at in UNEVEN]
    behind = [Ran(at + 12, at + 20) for at in [*UNEVEN[1:], 910]]
    assert not foreign(mine, behind).matches
    assert not foreign(mine, behind, shifts_ms=(0, 50)).matches


def test_few_ends_or_such_as_lie_off_the_line_prove_no_order() -> None:
    few = [Ran(at + 10, at + 20) for at in UNEVEN[:5]]
    assert "50.0 ms apart" in refusals(foreign(few, few, shifts_ms=(0, 50)))[0].message
    mine = [Ran(at + 10, at + 20) for at in UNEVEN]
    noisy = [Ran(at + 10, at + 20 + (-1) ** k) for k, at in enumerate(UNEVEN)]
    assert "numbers of their steps do not agree" in refusals(foreign(mine, noisy, shifts_ms=(0, 50)))[0].message


def test_a_clock_that_drifts_is_taken_for_one_that_drifts() -> None:
    # GIVEN 100 collectives over 100 s, and a clock that is 40 ms wrong by the end: more than ends may be apart
    mine = [Ran(at, at + 20) for at in range(0, 100_000, 1000)]
    theirs = [Ran(ran.begin + 0.4e-3 * ran.begin, ran.end + 0.4e-3 * ran.end) for ran in mine]
    assert len(foreign(mine, theirs).matches) == 100


def test_numbers_of_steps_tell_a_wrong_clock_from_a_file_that_begins_later() -> None:
    periodic = [Ran(100 * k, 100 * k + 10) for k in range(6)]
    steps, late_steps = ([step(k, (100 * k - 50 + shift) * MS, (100 * k + 50 + shift) * MS) for k in range(8)]
                         for shift in (0, 5000))  # fmt: skip
    result = analyze_run(run(
        rank(0, calls=calls(periodic), steps=steps, recorded=False),
        rank(1, calls=calls(periodic, 5000), steps=late_steps, recorded=False),
    ))  # fmt: skip
    assert len(result.matches) == 6
    assert not refusals(result)


def test_one_group_that_is_refused_does_not_touch_another() -> None:
    good = [Ran(10, 20, group="good"), Ran(60, 70, group="good")]
    result = foreign([*good, Ran(80, 90, group="bad")], [*good, Ran(80, 90, group="bad"), Ran(95, 96, group="bad")])
    assert {row.group for row in result.matches} == {"good"}
    assert [finding.where for finding in refusals(result)] == ["group bad"]


def test_groups_of_one_name_and_other_ranks_are_different_groups() -> None:
    def member(number: int, *ranks: int, end: int) -> RankRun:
        groups = [Group("tp", ranks, "nccl", None)]
        return rank(number, calls=calls([Ran(10, end, group="tp")]), groups=groups, recorded=False)

    pairs = [member(0, 0, 1, end=20), member(1, 0, 1, end=20), member(2, 2, 3, end=500), member(3, 2, 3, end=500)]
    result = analyze_run(run(*pairs, world_size=4))
    assert [row.ranks for row in result.matches] == [(0, 1), (2, 3)]


def test_a_group_of_which_one_rank_is_here_has_no_matches_and_no_finding() -> None:
    result = foreign(TOGETHER, [Ran(10, 20, group="other")])
    assert not result.matches
    assert not refusals(result)


def test_sends_receives_and_hooks_are_left_out_and_do_not_count() -> None:
    mine = [Ran(5, 8, "send"), *TOGETHER]
    result = foreign(mine, [LATE[0], Ran(21, 25, "recv"), *LATE[1:]])
    assert [(row.ordinal, row.seqs) for row in result.matches] == [(0, (2, 1)), (1, (3, 3)), (2, (4, 4)), (3, (5, 5))]
    hooks = [rank(k, hooks=[hook(1, 0, 5, 9)], reducers=()) for k in (0, 1)]
    assert not recorded(*hooks).matches


def test_collectives_that_need_not_end_together_are_matched_beside_those_that_do() -> None:
    mine = [*TOGETHER, Ran(170, 171, "broadcast")]
    theirs = [*LATE, Ran(195, 199, "broadcast")]
    assert [row.op for row in foreign(mine, theirs).matches][-1] == "broadcast"
    alone = foreign(mine[-1:], theirs[-1:])
    assert not alone.matches
    assert "nothing proves" in refusals(alone)[0].message


def test_what_ddptrace_recorded_is_matched_by_its_order_alone() -> None:
    stray = [Ran(10, 20), Ran(30, 500), Ran(510, 2000)]
    result = recorded(rank(0, calls=calls(TOGETHER[:1] * 3)), rank(1, calls=calls(stray)))
    assert [row.seqs for row in result.matches] == [(1, 1), (2, 2), (3, 3)]


def test_a_recorded_rank_that_died_is_matched_as_far_as_it_came() -> None:
    result = recorded(rank(0, calls=calls(TOGETHER)), rank(1, calls=calls(LATE[:2]), clean=False))
    assert [row.ordinal for row in result.matches] == [0, 1]
    assert not refusals(result)


def test_recorded_ranks_that_called_different_things_are_told() -> None:
    other = [TOGETHER[0], Ran(30, 50, "broadcast")]
    result = recorded(rank(0, calls=calls(TOGETHER[:2])), rank(1, calls=calls(other)))
    assert [row.ordinal for row in result.matches] == [0]
    assert not refusals(result)
    (row,) = result.desyncs
    assert (row.turn, row.rank, row.kind, row.op, row.expected_op) == (1, 1, "order", "broadcast", "all_to_all_single")
    (said,) = [finding for finding in result.findings if finding.code == "desync"]
    assert "Call #1 of group 0 is broadcast of 64 B on rank 1" in said.message


def test_what_only_the_host_saw_or_nobody_did_is_counted_and_not_matched() -> None:
    mine = [call(1, 10, ran=(11, 20)), call(2, 30), call(3, 40, ran=(41, 50)), call(4, 60, waits=((61, 70),))]
    result = recorded(
        rank(0, calls=mine), rank(1, calls=[call(k, 10 * k, ran=(10 * k + 1, 10 * k + 5)) for k in range(1, 5)])
    )
    assert [(row.ordinal, row.seqs) for row in result.matches] == [(0, (1, 1)), (2, (3, 3))]


def test_a_collective_across_two_steps_is_one_and_ends_where_its_last_part_does() -> None:
    steps = [step(0, 0, 15 * MS), step(1, 15 * MS, 30 * MS)]
    result = recorded(rank(0, calls=calls(TOGETHER[:1]), steps=steps), rank(1, calls=calls(LATE[:1]), steps=steps))
    (row,) = result.matches
    assert (row.first_start_at_ns, row.last_end_at_ns) == (10 * MS, 20 * MS)
    assert [(c.rank, c.part, c.match) for c in result.collectives] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]


def test_lost_records_of_a_rank_take_away_the_proof_by_order() -> None:
    lossy = replace(rank(1, calls=calls(LATE[:2])), dropped=2)
    result = recorded(rank(0, calls=calls(TOGETHER)), lossy)
    assert not result.matches
    assert "rank 1 shows 2 of them" in refusals(result)[0].message


def test_sampled_ranks_are_matched_by_the_step_that_launched_a_collective_wherever_it_ran() -> None:
    # GIVEN steps 0 and 100, the last collective of each queued: on rank 1 it begins when its step is over
    def member(number: int, late: int) -> RankRun:
        steps = [step(0, 0, 50), step(100, 1000, 1050)]
        ran = [(10, 20), (46 + late, 60), (1010, 1020), (1046 + late, 1060)]
        made = [call(k, begin - 5 - late * (k % 2 == 0), ran=(begin, end)) for k, (begin, end) in enumerate(ran, 1)]
        return replace(rank(number, calls=made, steps=steps), sampled=True)

    result = recorded(member(0, 0), member(1, 7))
    assert [row.step for row in result.collectives if row.rank == 1] == [0, None, 100, None]
    assert [row.seqs for row in result.matches] == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_step_that_one_sampled_rank_recorded_alone_is_left_out() -> None:
    def member(number: int, *ordinals: int) -> RankRun:
        steps = [step(k, 100 * k, 100 * k + 50) for k in ordinals]
        made = [call(k + 1, 100 * k + 5, ran=(100 * k + 10, 100 * k + 20)) for k in ordinals]
        return replace(rank(number, calls=made, steps=steps), sampled=True)

    assert [row.seqs for row in recorded(member(0, 0, 3, 6), member(1, 0, 2, 3, 6)).matches] == [(1, 1), (4, 4), (7, 7)]
