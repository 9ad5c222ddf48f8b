"""What does find_unused_parameters cost me? Were any unused?"""

from __future__ import annotations

import re

from tests.answers.conftest import Ask


def test_where_every_parameter_is_used_its_cost_is_told_and_that_it_can_go(ask: Ask) -> None:
    said = ask("nothing unused", "--profile").said("find-unused-parameters")
    assert "finds nothing: in 40 backwards all 10 parameters of DistributedDataParallel of Net got a gradient" in said
    assert "Remove the option." in said
    assert re.search(r"the all-reduce of its bitmap runs for [\d.]+ (ms|µs), the graph walk takes [\d.]+ ", said)
    assert "keeps its first buckets" in said


def test_parameters_that_nothing_uses_are_named_with_the_bytes_sent_for_them(ask: Ask) -> None:
    said = ask("one unused").said("find-unused-parameters")
    assert said.startswith("2 of 12 parameters of DistributedDataParallel of Net never got a gradient, in 40 backwards")
    assert (
        "spare.weight" in said and "spare.bias" in said and "They have 263 kB, which every step sends as zeros." in said
    )
    assert "requires_grad=False" in said


def test_where_nothing_looks_for_unused_parameters_nothing_is_said(ask: Ask) -> None:
    assert ask("accumulated").said("find-unused-parameters") == ""
