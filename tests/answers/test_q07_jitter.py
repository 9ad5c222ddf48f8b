"""Where does the jitter come from?"""

from __future__ import annotations

import re

import pytest

from tests.answers.conftest import Ask
from tests.programs.asked import LATE_S

pytestmark = pytest.mark.alone


def test_the_phase_and_the_rank_that_make_some_steps_long_are_told_with_their_share(ask: Ask) -> None:
    said = ask("now and then").said("jitter")
    found = re.search(
        r"([\d.]+) % of the variance comes from the data phase of rank 1 \(median ([\d.]+) (µs|ms); one in", said
    )
    assert found and float(found[1]) > 50
    assert found[3] == "µs" or float(found[2]) < LATE_S * 1e3
    assert re.search(r"one in twenty takes [\d.]+ ms or more, [\d.]+ times the median of [\d.]+ ms \(49 steps\)", said)
    assert "look at what its data loader reads in some steps" in said
