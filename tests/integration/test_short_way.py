"""What is recorded of DDP's buckets on the short way, or by compiled code, is what the long way records of the same
training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddptrace.load.run import read_run
from tests.launch import torchrun
from tests.programs.short_way import CASES, WAYS

SAME = (
    "op", "group", "ordinal", "nbytes_in", "nbytes_out", "dtype", "is_sync", "is_native", "reducer", "origin",
    "site", "module", "turn", "error",
)  # fmt: skip
SHORT = {"plain": 0.1, "uniform": 0.7, "unused": 0.3, "compressed": 0.0, "beside": 0.1}
"""Of the buckets, at least. One of another data type than the one before goes the long way; what Python sends does."""


COMPILED = {"plain": 0.6, "uniform": 0.6, "unused": 0.1, "compressed": 0.0, "beside": 0.1}
"""The same of compiled code, which begins when torch has told of the buckets it rebuilt. With `find_unused_parameters`
it does not rebuild any, and is asked in 12 backwards."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, compiled_cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("short-way")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(compiled_cache))
        torchrun("short_way.py", folder)
    return folder


def told(run: Path) -> list[list[Any]]:
    """Of each rank's calls in the order of their numbers, all but when: whether they completed and were waited for."""
    return [
        [
            [*(getattr(call, name) for name in SAME), call.done_at_ns is None, len(call.waits), call.hook is None]
            for call in sorted(rank.calls, key=lambda call: call.seq)
        ]
        for rank in read_run(run).ranks
    ]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["compiled", "short"])
def test_every_way_records_what_the_long_way_does(name: str, way: str, runs: Path) -> None:
    one, long = told(runs / f"{name}-{way}"), told(runs / f"{name}-long")
    assert one == long and len(one) == 2 and all(len(rank) > 12 for rank in one)


@pytest.mark.parametrize("name", CASES)
def test_buckets_do_go_the_short_way(name: str, runs: Path) -> None:
    after = {way: json.loads((runs / f"{name}-{way}.json").read_text()) for way in WAYS}
    native = sum(call.is_native for call in read_run(runs / f"{name}-short").ranks[0].calls)
    short, compiled = after["short"][0] - after["compiled"][0], after["compiled"][1]
    assert after["long"] == after["short"] and SHORT[name] * native <= short <= native
    assert COMPILED[name] * native <= compiled <= native == after["short"][1] + native - compiled
    assert (short > 0) == (SHORT[name] > 0) and (compiled > 0) == (COMPILED[name] > 0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_on_every_way_launch_precedes_issued_and_completion(name: str, way: str, runs: Path) -> None:
    for rank in read_run(runs / f"{name}-{way}").ranks:
        calls = sorted(rank.calls, key=lambda call: call.seq)
        assert all(one.launch_at_ns <= one.issued_at_ns <= (one.done_at_ns or one.issued_at_ns + 1) for one in calls)
        assert [one.launch_at_ns for one in calls] == sorted(one.launch_at_ns for one in calls)
