"""One layer makes all-reduce take long: which?"""

from __future__ import annotations

import re

from tests.answers.conftest import Ask


def test_the_layer_is_named_with_its_bytes_what_they_cost_and_what_to_do(ask: Ask) -> None:
    said = ask("heavy layer").said("heavy-layer")
    assert said.startswith("Layer table (table.weight) has 32.0 MB of the 33.1 MB of gradients, 97 %.")
    found = re.search(
        r"in bucket \d \(([\d.]+) ms of the ([\d.]+) ms that all buckets take in a step\); ([\d.]+) ms of that are",
        said,
    )
    assert found and float(found[3]) <= float(found[1]) <= float(found[2])
    assert "a sparse gradient" in said and "freeze it" in said


def test_of_layers_that_are_alike_none_is_named(ask: Ask) -> None:
    assert ask("accumulated").said("heavy-layer") == ""
