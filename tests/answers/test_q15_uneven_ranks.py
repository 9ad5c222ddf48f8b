"""Ranks run at different speeds: does it matter?"""

from __future__ import annotations

import re

import pytest

from tests.answers.conftest import Ask
from tests.answers.test_q06_slow_rank import COST
from tests.programs.asked import LATE_S

pytestmark = pytest.mark.alone  # a machine that is crowded by others silences this finding


def test_the_time_lost_to_waiting_is_told_and_for_whom(ask: Ask) -> None:
    answer = ask("slower backward")
    said = answer.said("late-rank")
    found = re.search(COST.format("backward"), said)
    assert found and 0.5 * LATE_S < float(found[1]) / 1e3 < 2.5 * LATE_S
    assert re.search(r"\d+ % of the communication waits for ranks that come later", answer.text)
    assert re.search(r"last to arrive rank 1 in \d+ %, by [\d.]+ ms", answer.text)
