"""Do the ranks wait for their data?"""

from __future__ import annotations

import re

from tests.answers.conftest import Ask
from tests.programs.asked import LATE_S


def test_reading_data_slowly_on_all_ranks_is_told_with_what_it_costs(ask: Ask) -> None:
    answer = ask("slow data")
    found = re.search(r"([\d.]+) ms, mean of the ranks", answer.said("data-bound"))
    assert found and float(found[1]) / 1e3 >= 0.9 * LATE_S
    [saving] = [row for row in answer.result.savings if row.cause == "data"]
    assert saving.finding == "data-bound" and saving.cost_ns >= 0.9e9 * LATE_S


def test_reading_data_at_once_is_no_finding(ask: Ask) -> None:
    assert not ask("a bucket each").said("data-bound")
