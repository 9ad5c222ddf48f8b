"""What the sheets of all benchmarks have in common: heads that say what intervals are, cells, setups, refusals."""

from __future__ import annotations

import pytest

from ddptrace.bench.experiment import JobOptions, caps, known, merged_setup, only_one
from ddptrace.bench.timing import (
    COMM_HEADS,
    NO_DIFFERENCE,
    ONE_ROUND,
    Spread,
    chart_ms,
    comm_cells,
    doubt,
    interval_head,
    ms_interval,
    ratio_interval,
    spread_line,
    step_lines,
)
from ddptrace.errors import DdptraceError

MS = 1_000_000


def of(rounds: int, low: float = 0.9, high: float = 1.1) -> Spread:
    return Spread((low + high) / 2, low, high, low, high, rounds)


@pytest.mark.parametrize(
    ("rounds", "head"),
    [
        ((7, 6), "95 % interval"),
        ((1,), "range of the rounds"),
        ((5, 3), "range of the rounds"),
        ((7, 3), "95 % interval; range below 6 rounds"),
        ((), "95 % interval"),
    ],
)
def test_a_head_says_95_percent_only_of_intervals_that_are_that(rounds: tuple[int, ...], head: str) -> None:
    assert interval_head(map(of, rounds)) == head


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (of(1, 0.8, 0.8), ONE_ROUND),
        (of(7, 0.8, 0.8), ""),
        (of(7, 0.8, 0.99), ""),
        (of(7, 0.8, 1.0), NO_DIFFERENCE),
        (of(7, 0.9, 1.1), NO_DIFFERENCE),
        (of(7, 1.01, 1.1), ""),
    ],
)
def test_a_ratio_whose_interval_holds_1_proves_no_difference_nor_does_one_round(ratio: Spread, said: str) -> None:
    assert doubt(ratio) == said


def test_cells_of_communication_stand_under_their_heads() -> None:
    true = {"comm_ns": 40 * MS, "hidden_ns": 10 * MS, "exposed_ns": 30 * MS, "overlap_ratio": 0.25}
    cells = dict(zip(COMM_HEADS, comm_cells(true), strict=True))
    assert cells == {"comm ms": "40.0", "hidden ms": "10.0", "exposed ms": "30.0", "hidden": "25 %"}
    assert comm_cells(None) == comm_cells(dict.fromkeys(true)) == ("-",) * 4


def test_intervals_are_told_in_ms_or_as_ratios() -> None:
    assert ms_interval(of(7, 1.5 * MS, 20 * MS)) == "1.50 .. 20.0"
    assert (ratio_interval(of(7)), ratio_interval(of(7), 2)) == ("0.900 .. 1.100", "0.90 .. 1.10")


def test_lines_of_charts_hold_medians_and_ends_in_their_unit_and_gaps_where_nothing_was_measured() -> None:
    line = spread_line("step", ("a", "b"), [of(7, 1 * MS, 3 * MS), of(7, 4 * MS, 8 * MS)], 1e6)
    assert (line.y, line.low, line.high) == ((2, 6), (1, 4), (3, 8))
    assert (chart_ms(None), chart_ms(1_500_000)) == (None, 1.5)
    _, exposed = step_lines(("a", "b", "c"), [of(7)] * 3, [{"exposed_ns": 2 * MS}, {"exposed_ns": None}, None])
    assert exposed.y == (2, None, None)


def test_what_jobs_were_measured_on_is_told_once_where_it_is_the_same() -> None:
    jobs = [{"setup": {"ranks": f"{ranks} on 1 host", "backend": "gloo"}} for ranks in (2, 4, 2)]
    assert merged_setup(JobOptions(), jobs) == (("ranks", "2 on 1 host; 4 on 1 host"), ("backend", "gloo"))


def test_the_first_name_that_is_none_is_refused_with_all_that_are() -> None:
    known("hook", ("b", "a"), ("a", "b"))
    with pytest.raises(DdptraceError, match=r"^no hook is called 'x'; choose from: a, b$"):
        known("hook", ("a", "x", "y"), ("a", "b"))


def test_one_number_of_ranks_is_one() -> None:
    only_one((2,))
    with pytest.raises(DdptraceError, match="one number of ranks"):
        only_one((2, 4))


def test_caps_are_numbers_or_have_a_name() -> None:
    assert caps(("5", "0.5")) == {"5": 5.0, "0.5": 0.5}
    assert caps(("0", "2"), {"0": 0.25}) == {"0": 0.25, "2": 2.0}


@pytest.mark.parametrize("asked", [(), ("0",), ("all",), ("-1",), ("nan",), ("inf",), ("1", "x")])
def test_what_is_no_cap_is_refused_in_one_sentence(asked: tuple[str, ...]) -> None:
    with pytest.raises(DdptraceError, match="a cap is a number of MiB above 0, and "):
        caps(asked)
    with pytest.raises(DdptraceError, match="a cap is a number of MiB above 0, none or every, and "):
        caps(asked, {"none": 1e-6, "every": 1e6})
