"""How much goes over the wire, and does batch size change it?"""

from __future__ import annotations

import re

import pytest

from tests.answers.conftest import Ask, printed

PARAMETERS = 4 * (256 * 256 + 256) + 8 * 256 + 256


@pytest.mark.parametrize(("batch", "gathered"), [(8, "8.19 kB"), (32, "32.8 kB")])
def test_gradients_are_what_parameters_are_and_only_what_is_gathered_grows_with_the_batch(
    batch: int, gathered: str, ask: Ask
) -> None:
    said = printed("traffic", ask(f"batch of {batch}"))
    assert re.search(rf"all_reduce +0 +gradients +float32 +5 +{4 * PARAMETERS / 1e6:.2f} MB", said)
    assert re.search(rf"all_gather +0 +program +float32 +1 +{gathered}", said)


def test_what_is_expected_is_beside_what_was_seen(ask: Ask) -> None:
    assert re.search(
        r"DistributedDataParallel of Net +1.06 MB +1 +1 +1.06 MB +1.06 MB +100 %", printed("traffic", ask("batch of 8"))
    )


def test_without_the_gathering_only_gradients_go_over(ask: Ask) -> None:
    said = printed("traffic", ask("accumulated"))
    assert "Every rank sends 1.06 MB per step" in said and "program" not in said
