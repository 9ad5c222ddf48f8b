"""How numbers are told in words."""

from __future__ import annotations

import pytest

from ddptrace.units import left_words, named, signed_percent, signed_tenths


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([3], "rank 3"),
        ([3, 4, 5], "ranks 3, 4 and 5"),
        (range(8), "ranks 0 to 7"),
        ([*range(8, 16), 24], "ranks 8 to 15 and 24"),
        ([0, 2, 4, 6, 8, 10, 12], "ranks 0, 2, 4, 6, 8 and 2 more"),
        ([1, *range(8, 16), 24, 30, 40, 44, *range(50, 60)], "ranks 1, 8 to 15, 24, 30, 40 and 11 more"),
    ],
)
def test_many_are_told_by_the_ends_of_their_runs_or_counted(numbers: list[int], words: str) -> None:
    assert named("rank", numbers) == words


def test_a_change_in_tenths_has_the_minus_sign_of_all_changes() -> None:
    assert [signed_tenths(ratio) for ratio in (-0.0136, 0.0136, -0.0001)] == ["−1.4 %", "+1.4 %", "0.0 %"]
    assert [signed_percent(ratio) for ratio in (-1.0, -0.997, -0.004)] == ["−100 %", "−99 %", "< 1 %"]


def test_what_is_left_is_told_from_what_is_done() -> None:
    told = [left_words(30 * 10**9, done, 4) for done in (0, 1, 3)]
    assert told == ["", ", about 90.0 s left", ", about 10.0 s left"]
