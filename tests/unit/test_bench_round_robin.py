"""What is said of process groups in turn, on made measurements."""

from __future__ import annotations

from typing import Any

import pytest

from ddptrace.bench.experiments.round_robin import Options, Turn, counts, verdict, words
from ddptrace.bench.timing import Spread
from ddptrace.errors import DdptraceError

Range = tuple[float, float, float]


def turn(name: str, ratio: Range, comm_ms: int | None = 40, at_once: float | None = 1) -> Turn:
    low, middle, high = ratio
    truth: dict[str, Any] | None = None if comm_ms is None else {"comm_ns": comm_ms * 1_000_000}
    spread = Spread(middle, low, high, low, high, 7)
    return Turn(name, int(name.split()[0]), spread, spread, truth, at_once)


ONE = turn("1", (1, 1, 1))
CONTROL = turn("1 again", (0.97, 1.01, 1.03), None, None)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        ((0.90, 0.93, 0.96), "faster"),
        ((0.90, 0.93, 0.98), "same"),  # its end lies where the control's values do
        ((0.99, 1.05, 1.10), "same"),
        ((1.02, 1.05, 1.10), "same"),
        ((1.04, 1.05, 1.10), "slower"),
    ],
)
def test_a_verdict_needs_the_whole_interval_beyond_what_noise_alone_does(ratio: Range, expected: str) -> None:
    assert verdict(turn("3", ratio), CONTROL) == expected


def test_the_control_is_one_group_under_a_second_name() -> None:
    assert list(counts(Options(groups=(1, 3))).items()) == [("1", 1), ("3", 3), ("1 again", 1)]


def test_each_ratio_is_told_with_its_interval_and_that_of_the_control() -> None:
    found = words(2, "gloo", 8, [ONE, turn("3", (0.90, 0.93, 0.96)), turn("5", (1.04, 1.05, 1.1)), CONTROL])
    assert found[0] == (
        "Between 2 ranks, with 3 groups a step takes 0.930 times (0.900 .. 0.960) as long as with 1: faster; with 5 "
        "groups a step takes 1.050 times (1.040 .. 1.100) as long as with 1: slower; the same group measured twice "
        "gives 0.970 .. 1.030."
    )


@pytest.mark.parametrize(
    ("ratio", "comm_ms", "at_once", "end"),
    [
        ((0.9, 0.93, 0.96), 40, 1.05, "more groups do not run more of them side by side here."),
        ((0.9, 0.93, 0.96), 40, 2, "so the link or the processor was full with 1 group."),
        ((0.9, 0.93, 0.96), 30, 2, "side by side they end sooner."),
        ((0.9, 1.0, 1.1), 30, 2, "end sooner, but the step is not shorter."),
    ],
)
def test_the_reason_follows_the_traced_runs(ratio: Range, comm_ms: int, at_once: float, end: str) -> None:
    assert words(2, "gloo", 8, [ONE, turn("3", ratio, comm_ms, at_once), CONTROL])[1].endswith(end)


def test_the_paper_is_confirmed_or_contradicted_only_over_its_backend() -> None:
    faster, same = turn("3", (0.9, 0.93, 0.96)), turn("3", (0.9, 1, 1.1))
    assert "too, has a number of groups that is faster than 1. " in words(2, "nccl", 8, [ONE, faster, CONTROL])[-1]
    assert "this measurement shows no difference beyond the noise. " in words(2, "nccl", 8, [ONE, same, CONTROL])[-1]
    assert "over gloo it neither confirms nor contradicts" in words(2, "gloo", 8, [ONE, same, CONTROL])[-1]


def test_groups_beyond_the_number_of_buckets_are_said_to_be_idle() -> None:
    asked = [ONE, turn("5", (0.9, 1, 1.1)), CONTROL]
    assert words(2, "gloo", 3, asked)[1] == "There are only 3 buckets: groups beyond that number have nothing to do."
    assert not any("There are only" in sentence for sentence in words(2, "gloo", 5, asked))


def test_one_group_alone_is_no_comparison_and_none_is_refused() -> None:
    assert words(2, "gloo", 8, [ONE, CONTROL]) == ["Only 1 group was measured, so there is nothing to compare."]
    with pytest.raises(DdptraceError, match="compared to 1"):
        Options(groups=(3, 5))
