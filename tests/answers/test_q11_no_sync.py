"""Is gradient accumulation worth it? Is my condition around no_sync() right?"""

from __future__ import annotations

import re

import pytest

from tests.answers.conftest import Answer, Ask, printed

SYNCHRONISED = ("synchronised-often", "synchronised-never", "synchronised-early")


def test_gradients_that_are_sent_more_often_than_updated_are_told_with_their_bytes(ask: Ask) -> None:
    said = ask("sent twice").said("synchronised-often")
    assert "sent its gradients 2 times per update in steps 0 to 19 (40 of 40 rank-steps)" in said
    assert "2.12 MB on a rank instead of 1.06 MB" in said and "put all but the last inside no_sync()" in said


def test_a_condition_that_is_off_by_one_is_told_with_what_it_does_to_the_model(ask: Ask) -> None:
    said = ask("sent early").said("synchronised-early")
    assert "but not in the last backward before the update (40 of 40 rank-steps)" in said
    assert "models of the ranks drift apart" in said and "all backwards but the last" in said


def test_of_a_condition_that_is_right_nothing_is_said(ask: Ask) -> None:
    assert not any(map(ask("accumulated").said, SYNCHRONISED))


def accumulated(answer: Answer) -> int:
    """What four backwards for each update would change a backward's time by, in percent."""
    found = re.search(
        r"an update every 4 backwards +[\d.]+ +[\d.]+ \.\. [\d.]+ +(?:< )?([−+\d]+) %", printed("whatif", answer)
    )
    assert found
    return int(found[1].replace("−", "-"))


@pytest.mark.alone
def test_what_accumulation_would_win_is_told_where_the_step_waits_for_what_is_sent(ask: Ask) -> None:
    assert accumulated(ask("heavy layer")) < -20 < accumulated(ask("nothing"))
    assert "the effect of fewer updates on the training is not predicted" in printed("whatif", ask("heavy layer"))
