"""Limits of a change: how they are written, and what exceeds them."""

from __future__ import annotations

import pytest

from ddptrace.analysis.diff.compare import QUANTITIES, Limit, compare, exceeding, parse_limit
from ddptrace.analysis.diff.tables import Diff
from ddptrace.errors import DdptraceError
from tests.unit.made_diff import made_run, made_side

STEP_MS = 50.0


def changed(**after: object) -> Diff:
    return compare(("a", "b"), made_side("before", 6), made_side("after", 6, first_at=1, **after))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("step>5%", Limit("step>5%", "step", None, 0.05)),
        (" exposed > 2.5 ms ", Limit("exposed > 2.5 ms", "exposed", 2.5e6, None)),
        ("bucket>300us", Limit("bucket>300us", "bucket", 3e5, None)),
        ("rank>1s", Limit("rank>1s", "rank", 1e9, None)),
        ("idle>0ns", Limit("idle>0ns", "idle", 0.0, None)),
    ],
)
def test_a_limit_is_a_quantity_and_an_amount(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", ["", "step", "step>5", "step<5%", "speed>5%", "step>-5%", "step>5%%", "step>1e3ms"])
def test_anything_else_is_refused_with_the_way_to_write_one(text: str) -> None:
    with pytest.raises(DdptraceError, match=r"is no limit: write QUANTITY>AMOUNT, as in 'step>5%'"):
        parse_limit(text)


def test_a_sure_change_beyond_the_limit_exceeds_it_and_one_within_does_not() -> None:
    found = changed(wire={1: 10})  # the step is a fifth longer
    assert [row.kind for row in exceeding(found, parse_limit("step>15%"))] == ["step"]
    assert exceeding(found, parse_limit("step>30%")) == []
    assert exceeding(found, parse_limit("exposed>5ms")) and not exceeding(found, parse_limit("exposed>20ms"))
    assert [row.index for row in exceeding(found, parse_limit("bucket>5ms"))] == [1]


def test_percent_are_of_the_step_before_whatever_the_quantity() -> None:
    found = changed(wire={1: 10})  # exposed: 8 ms and then 18, which is 20 % of the step before
    assert exceeding(found, parse_limit("exposed>18%")) and not exceeding(found, parse_limit("exposed>22%"))


def test_each_rank_that_computes_longer_is_told() -> None:
    found = changed(slow_rank={1: 20, 3: 25})
    assert [row.rank for row in exceeding(found, parse_limit("rank>10ms"))] == [1, 3]


def test_what_is_not_sure_exceeds_nothing_however_large() -> None:
    found = compare(("a", "b"), made_side("before", 2, noise=0.5), made_side("after", 2, first_at=1, noise=0.5))
    assert not found.step.is_sure
    assert exceeding(found, parse_limit("step>0ns")) == []


def test_a_change_for_the_better_exceeds_nothing() -> None:
    found = compare(("a", "b"), made_side("before", 6, wire={1: 10}), made_side("after", 6, first_at=1))
    assert found.step.is_sure
    assert exceeding(found, parse_limit("step>0%")) == []


def test_one_run_a_side_cannot_be_checked() -> None:
    found = compare(("a", "b"), [made_run(0)], [made_run(1, side="after", at=1)])
    with pytest.raises(DdptraceError, match=r"'step>5%' cannot be checked with 2 runs: the variation between equal"):
        exceeding(found, parse_limit("step>5%"))


def test_a_quantity_that_is_not_known_on_both_sides_cannot_be_checked() -> None:
    found = compare(("a", "b"), made_side("before", 4), made_side("after", 4, first_at=1, evidence="backend"))
    with pytest.raises(DdptraceError, match=r"'bucket>1ms' cannot be checked: not all runs on both sides have it"):
        exceeding(found, parse_limit("bucket>1ms"))
    assert exceeding(found, parse_limit("backward>1s")) == []


def test_every_quantity_of_a_limit_is_one_that_is_compared() -> None:
    known = {(row.kind, row.name) for row in changed().changes}
    assert set(QUANTITIES.values()) <= known
