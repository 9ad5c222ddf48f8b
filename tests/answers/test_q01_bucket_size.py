"""Which bucket size should I use?"""

from __future__ import annotations

import re

import pytest

from tests.answers.conftest import Ask, printed

pytestmark = pytest.mark.alone

STEP = r"predicts ([\d.]+) ms \(([\d.]+) \.\. ([\d.]+) ms\) for it and ([\d.]+) ms for the run as it was, which took"


def test_where_all_gradients_are_in_one_bucket_smaller_ones_are_advised_with_the_step_to_expect(ask: Ask) -> None:
    """16.8 MB that are sent when backward is over."""
    said = printed("advise", ask("one bucket"))
    advised = re.search(r"(?:Take|better;) bucket_cap_mb(?:=([\d.]+)|_list=\[([\d.]+), )", said)
    assert advised and float(advised[1] or advised[2]) < 16
    expected = re.search(STEP, said)
    assert expected
    step, low, high, recorded = map(float, expected.groups())
    assert low <= step <= high and step < recorded
    assert "waiting for gradients: if all buckets were sent as backward begins" in said


def test_of_a_training_that_hides_its_communication_no_other_size_is_said_to_win_much(ask: Ask) -> None:
    said = printed("advise", ask("a bucket each"))
    gain = re.search(r"bucket_cap_mb\S*(?: is the best guess)?: −(\d+) %", said)
    assert "Keep the buckets as they are" in said or (gain and int(gain[1]) < 10)
