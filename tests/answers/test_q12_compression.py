"""Would gradient compression help?"""

from __future__ import annotations

import re

import pytest

from tests.answers.conftest import Answer, Ask, printed

pytestmark = pytest.mark.alone


def change(answer: Answer) -> int:
    """Of the step with gradients in half precision, in percent."""
    found = re.search(r"fp16 hook +([\d.]+) +([\d.]+) \.\. ([\d.]+) +(?:< )?([−+\d]+) %", printed("whatif", answer))
    assert found and float(found[2]) <= float(found[1]) <= float(found[3])
    return int(found[4].replace("−", "-"))


def test_where_most_of_the_step_sends_bytes_half_of_them_make_it_shorter(ask: Ask) -> None:
    assert change(ask("heavy layer")) < 0
    assert "fp16: casting all gradients is assumed to cost as much as the update" in printed(
        "whatif", ask("heavy layer")
    )


def test_where_all_communication_is_hidden_compression_wins_nothing(ask: Ask) -> None:
    assert change(ask("nothing")) >= 0
