"""Where ranks part in what they call of a group, and what became of the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from analysis_records import call, rank, run
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.findings.desync import desync_findings
from ddptrace.analysis.matching.calls import GroupCall, GroupCalls
from ddptrace.analysis.matching.desync import parting
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import DesyncRow
from ddptrace.findings import Finding
from ddptrace.load.tables import Group, RankRun

BUCKET_0 = GroupCall(0, "all_reduce", 400, "float32", origin="gradients", site="train.py:30 in step")
BUCKET_1 = replace(BUCKET_0, nbytes=200)
LOSS = GroupCall(0, "all_reduce", 4, "float32", origin="program", site="train.py:35 in step")
NORM = GroupCall(0, "all_gather", 32, "float32", origin="program", site="train.py:40 in step")
SAVE = GroupCall(0, "broadcast", 64, "int64", root=0, origin="program", site="save.py:7 in save")
STEP = (BUCKET_0, BUCKET_1, LOSS)


def calls(number: int, *marks: GroupCall, first: int = 0) -> GroupCalls:
    """With a step for each `STEP`."""
    return GroupCalls(number, [replace(mark, turn=first + k, step=k // len(STEP)) for k, mark in enumerate(marks)])


def among(ranks: int, own: Sequence[GroupCall], others: Sequence[GroupCall], *, first: int = 0) -> list[GroupCalls]:
    """The last rank but one calls `own`, the rest `others`."""
    return [calls(k, *(own if k == ranks - 1 else others), first=first) for k in range(ranks)]


def the_row(ranks: Sequence[GroupCalls]) -> DesyncRow:
    (row,) = parting("0", ranks).rows
    return row


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_call_the_same_do_not_part(ranks: int) -> None:
    found = parting("0", among(ranks, STEP * 5, STEP * 5))
    assert (found.turn, found.rows) == (None, ())


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("first", [0, 1000])
@pytest.mark.parametrize(
    ("kind", "own", "others"),
    [
        # went on after it
        ("missing", [BUCKET_1, LOSS, *STEP * 4], [*STEP * 5]),
        ("missing", [BUCKET_1, LOSS, *STEP], [*STEP, *STEP]),
        ("extra", [SAVE, *STEP, *STEP], [*STEP, *STEP]),
        ("extra", [SAVE, NORM, SAVE, *STEP], [*STEP]),
        ("reordered", [BUCKET_1, BUCKET_0, LOSS, *STEP], [*STEP, *STEP]),
        ("reordered", [NORM, SAVE, *STEP], [SAVE, NORM, *STEP]),
        ("reordered", [NORM, SAVE], [SAVE, NORM]),
        ("order", [SAVE, *STEP], [NORM, *STEP]),
        ("size", [replace(BUCKET_0, nbytes=404), *STEP[1:], *STEP], [*STEP, *STEP]),
        ("size", [replace(BUCKET_0, nbytes=404), replace(BUCKET_1, nbytes=202)], [*STEP[:2]]),
        ("dtype", [replace(LOSS, dtype="float64", nbytes=8), *STEP], [LOSS, *STEP]),
        ("root", [replace(SAVE, root=1), *STEP], [SAVE, *STEP]),
        # one call each is known, since they block: what was usual before tells
        ("missing", [BUCKET_1], [BUCKET_0]),
        ("extra", [LOSS], [BUCKET_0]),
        ("extra", [SAVE], [BUCKET_0]),
        ("order", [SAVE], [NORM]),
        ("size", [replace(BUCKET_0, nbytes=404)], [BUCKET_0]),
        ("dtype", [replace(BUCKET_0, dtype="bfloat16", nbytes=200)], [BUCKET_0]),
        ("root", [replace(SAVE, root=1)], [SAVE]),
    ],
)
def test_what_became_of_a_call_is_told_after_steps_that_agree(
    kind: str, own: list[GroupCall], others: list[GroupCall], ranks: int, first: int
) -> None:
    before = [*STEP] * 4
    found = parting("0", among(ranks, before + own, before + others, first=first))
    (row,) = found.rows
    assert (found.turn, row.turn, row.rank) == (first + 12, first + 12, ranks - 1)
    assert row.kind == kind
    assert (row.op, row.nbytes, row.dtype, row.site, row.root) == (
        own[0].op, own[0].nbytes, own[0].dtype, own[0].site, own[0].root
    )  # fmt: skip
    assert (row.expected_op, row.expected_nbytes, row.expected_dtype, row.expected_site, row.expected_root) == (
        others[0].op, others[0].nbytes, others[0].dtype, others[0].site, others[0].root
    )  # fmt: skip
    assert (row.origin, row.expected_origin) == (own[0].origin, others[0].origin)
    assert (row.expected_rank, row.step) == (0, 4)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("kind", "own", "others"),
    [
        ("missing", [LOSS, *STEP], [SAVE, LOSS, *STEP]),
        ("extra", [SAVE, LOSS, *STEP], [LOSS, *STEP]),
        ("order", [SAVE], [LOSS]),
        ("size", [replace(LOSS, nbytes=8)], [LOSS]),
    ],
)
def test_the_first_call_of_all_may_be_the_one_that_differs(
    kind: str, own: list[GroupCall], others: list[GroupCall], ranks: int
) -> None:
    row = the_row(among(ranks, own, others))
    assert (row.turn, row.rank, row.kind) == (0, ranks - 1, kind)


@pytest.mark.parametrize(
    ("own", "others"),
    [([*STEP, *STEP], [SAVE, *STEP, *STEP]), ([*STEP], [SAVE, NORM, *STEP]), ([BUCKET_0], [SAVE]), ([LOSS], [SAVE])],
)
def test_a_call_that_was_never_made_before_is_left_out_by_one_of_four_and_extra_on_one_of_two(
    own: list[GroupCall], others: list[GroupCall]
) -> None:
    before = [*STEP] * 4
    row = the_row(among(4, before + own, before + others))
    assert (row.rank, row.kind, row.expected_op, row.expected_rank) == (3, "missing", "broadcast", 0)
    row = the_row(among(2, before + own, before + others))
    assert (row.rank, row.kind, row.op, row.expected_rank) == (0, "extra", "broadcast", 1)


def test_of_two_ranks_the_one_that_did_as_always_is_right() -> None:
    before = [*STEP] * 3
    row = the_row([calls(0, *before, BUCKET_1), calls(1, *before, BUCKET_0)])
    assert (row.rank, row.kind, row.expected_rank) == (0, "missing", 1)
    row = the_row([calls(0, *before, BUCKET_0), calls(1, *before, BUCKET_1)])
    assert (row.rank, row.kind, row.expected_rank) == (1, "missing", 0)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("shown", [1, 2, 3])
def test_a_usual_call_left_out_is_told_so_however_many_usual_calls_its_rank_made_since(ranks: int, shown: int) -> None:
    step = [BUCKET_0, BUCKET_1, replace(BUCKET_0, nbytes=100), LOSS]
    before = [*step * 9, *step[:3]]
    row = the_row(among(ranks, before + step[:shown], [*before, LOSS]))
    assert (row.rank, row.kind, row.expected_nbytes) == (ranks - 1, "missing", 4)


def test_a_rank_that_called_less_is_told_with_what_it_did_not_call() -> None:
    found = parting("0", [calls(0, *STEP * 2), calls(1, *STEP), calls(2, *STEP, BUCKET_0), calls(3, *STEP * 2)])
    assert found.turn is None
    told = [(row.rank, row.turn, row.kind, row.op, row.nbytes, row.expected_nbytes) for row in found.rows]
    assert told == [(1, 3, "missing", "", None, 400), (2, 4, "missing", "", None, 200)]
    assert [row.expected_rank for row in found.rows] == [0, 0]


def test_ranks_that_stopped_before_others_part_or_there_are_told_too_and_later_ones_are_not() -> None:
    parts = [calls(0, *STEP, LOSS, BUCKET_1), calls(1, *STEP, BUCKET_0), calls(2, *STEP, LOSS, BUCKET_1)]
    stopped = [calls(3, *STEP[:2]), calls(4, *STEP), calls(5, *STEP, LOSS)]
    found = parting("0", [*parts, *stopped])
    assert found.turn == 3
    assert [(row.rank, row.turn, row.op, row.expected_nbytes) for row in found.rows] == [
        (1, 3, "all_reduce", 4), (3, 2, "", 4), (4, 3, "", 4)
    ]  # fmt: skip


def test_ranks_that_part_in_different_ways_are_told_each_its_own() -> None:
    before, after = [*STEP] * 3, [*STEP] * 3
    others = [calls(k, *before, *after) for k in (0, 2)]
    found = parting("0", [others[0], calls(1, *before, *after[1:]), others[1], calls(3, *before, SAVE, *after)])
    assert [(row.rank, row.kind) for row in found.rows] == [(1, "missing"), (3, "extra")]


def test_what_is_not_known_of_a_call_or_may_differ_by_rank_parts_nobody() -> None:
    unknown = replace(LOSS, nbytes=None, dtype="")
    uneven = [GroupCall(0, "all_to_all_single", nbytes, "float32") for nbytes in (10, 30)]
    rootless = replace(SAVE, root=None)
    other_line = replace(LOSS, site="train.py:99 in other")
    found = parting("0", [
        calls(0, LOSS, uneven[0], SAVE, LOSS), calls(1, unknown, uneven[1], rootless, other_line)
    ])  # fmt: skip
    assert (found.turn, found.rows) == (None, ())


def test_at_another_line_of_a_library_it_is_another_call_and_not_one_of_another_size() -> None:
    here, there = (replace(LOSS, nbytes=nbytes, through=f"framework/loop.py:{nbytes} in run") for nbytes in (4, 8))
    row = the_row([calls(k, *STEP * 3, there if k == 2 else here) for k in range(3)])
    assert (row.kind, row.site, row.through) == ("extra", LOSS.site, there.through)
    assert (row.expected_site, row.expected_through) == (LOSS.site, here.through)
    (finding,) = desync_findings([], [row])
    assert f"rank 2 (at {LOSS.site}, through {there.through})" in finding.message
    assert f"rank 0 (at {LOSS.site}, through {here.through})" in finding.message


@st.composite
def dropped(draw: st.DrawFn) -> tuple[list[GroupCall], int, int, int]:
    """Calls, the number of ranks, the rank that leaves one out, and which."""
    made = draw(st.lists(st.sampled_from([*STEP, SAVE]), min_size=1, max_size=40))
    ranks = draw(st.sampled_from([2, 3, 4]))
    return made, ranks, draw(st.integers(0, ranks - 1)), draw(st.integers(0, len(made) - 1))


@settings(max_examples=200)
@given(dropped())
def test_a_call_that_one_rank_leaves_out_is_found_there_and_nothing_different_is_matched(
    drawn: tuple[list[GroupCall], int, int, int],
) -> None:
    made, ranks, who, at = drawn
    fewer = made[:at] + made[at + 1 :]
    found = parting("0", [calls(k, *(fewer if k == who else made)) for k in range(ranks)])
    differing = [k for k, (one, other) in enumerate(zip(made, fewer, strict=False)) if one.key != other.key]
    assert found.turn == (differing[0] if differing else None)
    (row,) = found.rows
    if ranks > 2 or not differing:
        left_out = made[at]  # of equal calls in a row any may be
        assert (row.rank, row.kind, row.turn) == (who, "missing", (differing or [len(fewer)])[0])
        assert (row.expected_op, row.expected_nbytes) == (left_out.op, left_out.nbytes)
    else:
        assert row.turn == differing[0]
        assert (row.rank == who) == (row.kind == "missing") or row.kind == "order"


def recorded(*ranks: RankRun) -> Result:
    return analyze_run(run(*ranks, world_size=len(ranks)))


def member(number: int, *marks: GroupCall, world: int = 2, first: int = 0, clean: bool = True) -> RankRun:
    """A rank that ddptrace recorded; from its call number `first` on, the ones before let go."""
    made = [
        call(
            k + 1, 10 * k, ran=(10 * k + 1, 10 * k + 9), op=mark.op, nbytes_in=mark.nbytes, nbytes_out=0,
            dtype=mark.dtype, origin=mark.origin, site=mark.site, peer=mark.root, turn=k, ordinal=k,
        )
        for k, mark in enumerate(marks) if k >= first
    ]  # fmt: skip
    groups = (Group("0", tuple(range(world)), "gloo", 2),)
    return replace(rank(number, calls=made, groups=groups, clean=clean), let_go=first)


def told(result: Result, code: str) -> list[Finding]:
    return [finding for finding in result.findings if finding.code == code]


def test_what_was_called_before_the_ranks_part_is_matched_and_nothing_after() -> None:
    result = recorded(member(0, *STEP * 4), member(1, *STEP * 2, BUCKET_1, LOSS, *STEP))
    assert [row.ordinal for row in result.matches] == list(range(6))
    (row,) = result.desyncs
    assert (row.group, row.turn, row.rank, row.kind) == ("0", 6, 1, "missing")
    (finding,) = told(result, "desync")
    assert (finding.severity, finding.where) == ("error", "group 0")
    assert "Call #6 of group 0 is all_reduce of 200 B on rank 1 (at train.py:30 in step, gradients)" in finding.message
    assert "and all_reduce of 400 B on rank 0 (at train.py:30 in step, gradients)" in finding.message
    assert "rank 1 had not made the call of rank 0 by then" in finding.message
    assert not told(result, "match-refused")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            replace(BUCKET_0, nbytes=404),
            "is all_reduce of 404 bytes on rank 1 (at train.py:30 in step, gradients) and of 400 bytes",
        ),
        (
            replace(BUCKET_0, dtype="float64"),
            "is all_reduce of float64 on rank 1 (at train.py:30 in step, gradients) and of float32",
        ),
    ],
)
def test_what_differs_in_size_or_dtype_is_told_by_that(own: GroupCall, said: str) -> None:
    (finding,) = told(recorded(member(0, *STEP * 2), member(1, *STEP, own, *STEP[1:])), "desync")
    assert said in finding.message
    assert "on rank 0" in finding.message


def test_a_group_of_which_the_ranks_let_different_calls_go_parts_at_its_own_number() -> None:
    result = recorded(member(0, *STEP * 4, first=2), member(1, *STEP * 3, NORM, *STEP[1:], first=5))
    assert [row.ordinal for row in result.matches] == [5, 6, 7, 8]
    assert [(row.turn, row.rank, row.op) for row in result.desyncs] == [(9, 1, "all_gather")]


def test_a_run_that_was_cut_is_matched_up_to_the_shortest_rank_and_what_that_did_not_call_is_told() -> None:
    result = recorded(
        member(0, *STEP * 2, world=4), member(1, *STEP, clean=False, world=4), member(2, *STEP, world=4),
        member(3, world=4),
    )  # fmt: skip
    assert not result.matches
    assert [(row.rank, row.turn, row.op, row.expected_site) for row in result.desyncs] == [
        (1, 3, "", "train.py:30 in step"), (2, 3, "", "train.py:30 in step"), (3, 0, "", "train.py:30 in step")
    ]  # fmt: skip
    ended = told(result, "desync")
    assert [finding.message.split(" of group")[0] for finding in ended] == [
        "Rank 2 has not made call #3", "Rank 3 has not made call #0"
    ]  # fmt: skip
    (behind,) = told(result, "rank-behind")
    assert behind.severity == "warning"
    assert "Rank 1 has not made call #3 of group 0, which is all_reduce of 400 B on rank 0" in behind.message
    shorter = recorded(member(0, *STEP * 2), member(1, *STEP, clean=False))
    assert [row.ordinal for row in shorter.matches] == [0, 1, 2]


def test_ranks_that_did_alike_are_told_in_one_sentence() -> None:
    before, world = STEP * 3, 5
    others = [member(k, *before, *STEP, world=world) for k in (0, 2, 4)]
    parted = [member(k, *before, SAVE, *STEP, world=world) for k in (1, 3)]
    result = recorded(*sorted([*others, *parted], key=lambda one: one.rank))
    assert [(row.rank, row.kind) for row in result.desyncs] == [(1, "extra"), (3, "extra")]
    (finding,) = told(result, "desync")
    assert "is broadcast of 64 B on ranks 1 and 3 (at save.py:7 in save)" in finding.message


def test_lost_records_make_no_rank_part() -> None:
    lossy = replace(member(1, *STEP, BUCKET_1, LOSS), dropped=3)
    result = recorded(member(0, *STEP * 2), lossy)
    assert not result.desyncs
    assert not result.matches
    assert told(result, "match-refused")
    silent = recorded(member(0, *STEP), replace(member(1), dropped=3))
    assert not silent.desyncs


def test_many_groups_that_part_are_told_in_few_findings() -> None:
    def one(number: int, kept: int) -> RankRun:
        made = [
            call(9 * k + n + 1, 10 * (9 * k + n), ran=(10 * (9 * k + n) + 1, 10 * (9 * k + n) + 9), group=f"g{k}")
            for k in range(9) for n in range(kept)
        ]  # fmt: skip
        return rank(number, calls=made, groups=[Group(f"g{k}", (0, 1), "gloo", 1) for k in range(9)])

    result = recorded(one(0, 5), one(1, 4))
    assert len(result.desyncs) == 9
    found = told(result, "desync")
    assert len(found) == 6
    assert "at 4 more calls" in found[-1].message
