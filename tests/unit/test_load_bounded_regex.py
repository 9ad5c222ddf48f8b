"""Expressions that could take for ever are refused in a sentence; those that people write for kernels are not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ddptrace.errors import DdptraceError
from ddptrace.load.windows.comm_kernels import parse_rule

ENDLESS = {
    "(a+)+$": "repeats a part",
    "(?:a|aa)+$": "repeats a part",
    "(a*)*b": "repeats a part",
    "(?P<x>a?b?)*c": "repeats a part",
    "(\\w+\\s?)*:": "repeats a part",
    "((ab)|c)+x": "repeats a part",
    "(a{1,30}){5}b": "repeats a part",
    "(?=(a+)+b)": "repeats a part",
    "((a+)b)+c": "repeats a part",
    ".*.*x": "two repetitions",
    "a+a+$": "two repetitions",
    ".*a.*b.*c.*d": "more than 3 repetitions",
    "a?" * 9 + "a" * 9: "more than 8 optional parts",
}
FINE = (
    "my_all_reduce", "nccl.*(AllReduce|AllGather)_.*f16", r"(?<![a-z])fused_(?:ar|ag)\d+", "[+*?]+x", r"\(\w+\)",
    "(ab)+", "(a+)?b",
    "(?i:mine)_v[0-9]{2}", "deep_ep::(?:intranode|internode)::(?:cached_)?notify", r"a\+\+\*b", "x{,}", "[]+]+y",
    "(?x)a # )",
)  # fmt: skip


@pytest.mark.parametrize("pattern", ENDLESS)
def test_an_expression_without_end_is_refused_in_a_sentence(pattern: str) -> None:
    with pytest.raises(DdptraceError, match=ENDLESS[pattern]) as told:
        parse_rule(f"{pattern}=all_reduce")
    assert "could take for ever" in str(told.value) and "give a part of the kernels' names" in str(told.value)


@pytest.mark.parametrize("pattern", FINE)
def test_an_expression_that_ends_is_taken(pattern: str) -> None:
    assert parse_rule(f"{pattern}=all_reduce").pattern == pattern


def test_what_is_refused_does_hang() -> None:
    """The test of the tests: Python's own answer, in a process that can be ended."""
    search = "import re; re.search('(a+)+$', 'a' * 60 + 'b')"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", search], timeout=1, check=False)
