"""Is my communication hidden at all? Which bucket is exposed?"""

from __future__ import annotations

import re

import pytest

from tests.answers.conftest import Ask


def test_the_share_that_is_hidden_is_told_with_what_it_rests_on(ask: Ask) -> None:
    found = re.search(r"(\d+) % of [\d.]+ ms communication is hidden .*?\(evidence callback", ask("heavy layer").text)
    assert found and int(found[1]) < 60  # the last bucket has 32 MB, and nothing to hide behind


def test_the_bucket_that_is_exposed_most_is_told_with_its_size_its_time_and_its_parameter(ask: Ask) -> None:
    found = re.search(r"with parameter \d 32\.0 MB ([\d.]+) \d+ % [<\d ]+ % table\.weight", ask("heavy layer").text)
    assert found and float(found[1]) > 5


@pytest.mark.alone
def test_why_it_is_exposed_is_told_and_a_way_out(ask: Ask) -> None:
    """On a machine that others use, ranks that these make late are told of instead."""
    said = ask("heavy layer").said("exposed-bucket")
    assert re.match(
        r"Bucket \d \(entry\.bias to table\.weight\) is the most exposed bucket: [\d.]+ ms of its communication", said
    )
    assert "use a faster link" in said or "send fewer bytes" in said
