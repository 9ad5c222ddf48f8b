"""Two sides of runs made by hand: what differs is called so and named, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddptrace.analysis.diff.changes import Units, changes
from ddptrace.analysis.diff.compare import compare
from ddptrace.analysis.diff.one_run import COMPUTE, RunFigures, differing
from ddptrace.analysis.diff.tables import Change, Diff, Setting
from tests.unit.made_diff import MS, QUANTITIES, SETTINGS, made_run, made_side


def compared(before: list[RunFigures], after: list[RunFigures]) -> Diff:
    return compare(("before/", "after/"), before, after)


def in_turns(runs: int = 6, **after: object) -> Diff:
    return compared(made_side("before", runs), made_side("after", runs, first_at=1, **after))


def sure(diff: Diff) -> set[tuple[object, ...]]:
    return {
        (row.kind, row.name, row.index if row.kind == "bucket" else row.rank) for row in diff.changes if row.is_sure
    }


def codes(diff: Diff) -> list[str]:
    return [finding.code for finding in diff.findings]


def test_equal_sides_are_called_equal() -> None:
    found = in_turns()
    assert sure(found) == set()
    assert (found.is_changed, found.bucket, found.rank) == (False, None, None)
    assert (found.basis, found.units, codes(found)) == ("pairs", (6, 6), [])


def test_equal_sides_are_called_different_in_no_more_than_one_of_twenty() -> None:
    wrong = 0
    for k in range(60):
        runs = [made_run(100 * k + at, at=at) for at in range(8)]
        wrong += compared(runs[::2], runs[1::2]).is_changed
    assert wrong <= 8  # 3 are due


def test_a_change_of_three_deviations_is_found_in_nineteen_of_twenty() -> None:
    found = 0
    for k in range(40):
        before = [made_run(100 * k + at, at=2 * at) for at in range(6)]
        after = [
            made_run(100 * k + at, side="after", at=2 * at + 1, slow_rank=dict.fromkeys(range(4), 2.4))
            for at in range(6)
        ]
        found += compared(before, after).step.is_sure  # 2.4 ms are 3 times 2 % of 40 ms
    assert found >= 36


def test_parts_and_phases_add_up_to_the_change_of_the_step() -> None:
    found = in_turns(wire={2: 6})
    parts = sum(row.change_ns for row in found.changes if row.kind == "part")
    assert parts == pytest.approx(found.step.change_ns, abs=4)
    assert found.step.change_ratio == pytest.approx(found.step.change_ns / found.step.before_ns, rel=1e-6)


def test_the_bucket_that_communicates_longer_is_named_and_not_the_one_that_it_delays() -> None:
    found = in_turns(wire={1: 3, 2: 0.2}, delayed={1: -2, 2: 4})
    assert found.bucket is not None
    assert (found.bucket.index, found.bucket.name) == (1, "comm")
    assert {("bucket", "exposed", 2), ("bucket", "comm", 1)} <= sure(found)


def test_a_bucket_that_is_only_delayed_is_named_where_no_communication_changed() -> None:
    found = in_turns(delayed={3: 4})
    assert found.bucket is not None
    assert (found.bucket.index, found.bucket.name) == (3, "exposed")


def test_the_rank_that_computes_longer_is_named_and_none_where_all_do() -> None:
    one = in_turns(slow_rank={2: 9})
    assert one.rank is not None and one.rank.rank == 2
    assert one.rank.change_ns == pytest.approx(9 * MS, rel=0.4)
    every = in_turns(slow_rank=dict.fromkeys(range(4), 9))
    assert every.step.is_sure and every.rank is None


def test_a_bucket_is_found_where_the_step_is_too_noisy() -> None:
    before = made_side("before", 6, noise=0.4)
    after = made_side("after", 6, first_at=1, noise=0.4, wire={1: 3})
    found = compared(before, after)
    assert not found.step.is_sure
    assert found.bucket is not None and found.bucket.index == 1


def test_one_run_a_side_is_told_by_blocks_and_never_sure() -> None:
    found = compared([made_run(0)], [made_run(1, side="after", at=1, wire={1: 30})])
    assert (found.basis, found.units) == ("blocks", (6, 6))
    assert found.step.low_ns is not None and found.step.low_ns > 0
    assert (sure(found), codes(found)) == (set(), ["few-runs"])
    assert found.run_ratio is None


def test_runs_too_short_for_blocks_have_no_intervals() -> None:
    found = compared([made_run(0, blocks=0)], [made_run(1, side="after", blocks=1)])
    assert (found.basis, codes(found)) == ("none", ["few-runs", "short-runs"])
    assert (found.step.low_ns, found.step.p, found.step.is_sure) == (None, None, False)
    assert found.step.change_ns != 0


@pytest.mark.parametrize(("before", "after", "basis"), [(1, 3, "runs"), (2, 2, "runs"), (1, 2, "blocks")])
def test_four_runs_in_all_tell_of_chance(before: int, after: int, basis: str) -> None:
    found = compared(made_side("before", before), made_side("after", after, first_at=1, wire={0: 60}))
    assert found.basis == basis
    assert found.step.is_sure == (basis == "runs")


def test_runs_that_did_not_take_turns_are_not_paired_and_that_is_said() -> None:
    found = compared(made_side("before", 6), made_side("after", 6, first_at=1000))
    assert (found.basis, found.units) == ("runs", (6, 6))
    assert codes(found) == ["not-in-turns"]
    assert "all runs of the before side ran before those of the after side" in found.findings[0].message


def test_pairs_take_away_what_changes_from_turn_to_turn() -> None:
    # GIVEN a machine that gets slower and slower, 2 ms a turn, and 3 ms that are planted
    def drifting(side: str, first_at: float, extra: float) -> list[RunFigures]:
        return [
            made_run(k, side=side, at=first_at + 2 * k, noise=0.002, slow_rank=dict.fromkeys(range(4), 2 * k + extra))
            for k in range(6)
        ]

    found = compared(drifting("before", 0, 0), drifting("after", 1, 3))
    # THEN the pairs tell, though the sides overlap
    assert found.basis == "pairs" and found.step.is_sure
    assert found.step.change_ns == pytest.approx(3 * MS, rel=0.2)


def test_a_bucket_of_other_parameters_is_another_bucket() -> None:
    other = tuple(
        replace(one, bucket=replace(one.bucket, parameters=("fused",))) if one.bucket and one.bucket.index == 2 else one
        for one in QUANTITIES
    )
    after = [replace(run, quantities=other) for run in made_side("after", 4, first_at=1)]
    found = compared(made_side("before", 4), after)
    assert {row.index for row in found.changes if row.kind == "bucket"} == {0, 1, 3}


def test_a_bucket_of_the_same_parameters_is_the_same_in_another_layout() -> None:
    moved = tuple(
        replace(one, bucket=replace(one.bucket, layout=4, nbytes=2_100_000)) if one.bucket else one
        for one in QUANTITIES
    )
    after = [replace(run, quantities=moved) for run in made_side("after", 4, first_at=1)]
    rows = [row for row in compared(made_side("before", 4), after).changes if row.kind == "bucket"]
    assert len(rows) == 8 and {(row.layout, row.nbytes) for row in rows} == {(4, 2_100_000)}


def test_sides_that_were_measured_apart_are_compared_by_step_and_phases_alone() -> None:
    profiled = SETTINGS | {COMPUTE: "profiler windows"}
    found = compared(made_side("before", 4), made_side("after", 4, first_at=1, settings=profiled, evidence="backend"))
    assert {row.kind for row in found.changes} == {"step", "phase"}
    assert codes(found) == ["measured-apart"]
    assert found.settings.to_dicts() == [{"name": COMPUTE, "before": "phases", "after": "profiler windows"}]


def test_what_is_told_of_one_side_alone_is_passed_on() -> None:
    told = frozenset({"late-rank", "exposed-bucket"})
    after = [replace(run, findings=told) for run in made_side("after", 4, first_at=1)]
    before = [replace(run, findings=frozenset({"exposed-bucket"})) for run in made_side("before", 4)]
    assert [(one.code, one.where) for one in compared(before, after).findings] == [("told-of-one-side", "late-rank")]


@pytest.mark.parametrize(
    ("counts", "side", "told"),
    [
        ((4, 4), 0, "Only the runs before have the finding `late-rank`."),
        ((4, 4), 1, "Only the runs after have the finding `late-rank`."),
        ((1, 4), 0, "Only the run before has the finding `late-rank`."),
        ((4, 1), 1, "Only the run after has the finding `late-rank`."),
    ],
)
def test_the_side_that_alone_has_a_finding_is_named_by_its_runs(counts: tuple[int, int], side: int, told: str) -> None:
    sides = [
        made_side(name, count, first_at=at)
        for at, (name, count) in enumerate(zip(("before", "after"), counts, strict=True))
    ]
    sides[side] = [replace(run, findings=frozenset({"late-rank"})) for run in sides[side]]
    assert [one.message for one in compared(*sides).findings if one.code == "told-of-one-side"] == [told]


def test_what_is_told_of_some_runs_of_a_side_is_not() -> None:
    after = made_side("after", 4, first_at=1)
    after[0] = replace(after[0], findings=frozenset({"late-rank"}))
    assert codes(compared(made_side("before", 4), after)) == []


@pytest.mark.parametrize(("longer", "share"), [(0.0, 0.2), (20.0, 1.0)])
def test_others_share_a_fifth_of_what_may_be_wrong_and_all_of_it_where_the_step_has_changed(
    longer: float, share: float
) -> None:
    # GIVEN a step that differs or not, and one other quantity: 1, 2, 3, 4 and 4, 5, 6, 7, whose p is 0.0167
    step = [10.0, 11, 12, 13, 11 + longer, 12 + longer, 13 + longer, 10 + longer]
    values = np.array([step, [1.0, 2, 3, 4, 4, 5, 6, 7]]).T
    units = Units("runs", values, np.arange(8) >= 4)
    # WHEN both are tested
    first, other = changes(QUANTITIES[:2], values[:4].mean(axis=0), values[4:].mean(axis=0), units)
    # THEN the other one is sure only beside a step that is
    assert other.p == pytest.approx(0.0167, abs=0.004)
    assert other.p is not None and other.adjusted_p == pytest.approx(other.p / share)
    assert (first.is_sure, other.is_sure) == (longer > 0, longer > 0)


def test_runs_are_listed_in_the_order_in_which_they_began() -> None:
    found = in_turns(2)
    assert [(row.order, row.path) for row in found.runs] == [
        (0, "before/00"), (1, "after/00"), (2, "before/01"), (3, "after/01"),
    ]  # fmt: skip
    assert found.run_ratio is not None and 0 < found.run_ratio < 0.1


def test_settings_that_differ_are_told_with_how_many_runs_have_each() -> None:
    old, new = {"torch": "2.12.1", "hosts": "a"}, {"torch": "2.13.0", "hosts": "a", "communication hook": "fp16"}
    assert differing([old, old], [new, old, new]) == [
        Setting("torch", "2.12.1", "2.12.1 (1 run), 2.13.0 (2 runs)"),
        Setting("communication hook", "not recorded", "not recorded (1 run), fp16 (2 runs)"),
    ]
    many = [{"hosts": str(k)} for k in range(9)]
    assert differing(many, [{"hosts": "9"}]) == [Setting("hosts", "9 different ones", "9")]
    assert differing([old, new], [new, old]) == []


def test_everything_is_json_with_the_documented_keys() -> None:
    told = in_turns(2).to_json_dict()
    assert list(told) == [
        "before", "after", "basis", "units", "run_ratio", "runs", "changes", "settings", "findings", "is_changed",
        "bucket", "rank", "overlap", "overlap_changed_by",
    ]  # fmt: skip
    assert list(told["changes"][0]) == [
        "kind", "name", "reducer", "layout", "index", "nbytes", "parameters", "rank", "before_ns", "after_ns",
        "change_ns", "change_ratio", "step_ratio", "low_ns", "high_ns", "p", "adjusted_p", "is_sure", "op", "origin",
            "unit", "role", "phase",
    ]  # fmt: skip


def test_an_interval_lies_around_its_change() -> None:
    for row in in_turns(4, wire={0: 5}).changes:
        assert row.low_ns is not None and row.high_ns is not None
        assert row.low_ns <= row.change_ns <= row.high_ns
        assert _is_consistent(row)


def _is_consistent(row: Change) -> bool:
    return row.p is not None and row.adjusted_p is not None and row.adjusted_p >= row.p * 0.99
