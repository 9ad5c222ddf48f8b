"""A store holds what ranks tell each other until the job ends, so a step must not leave anything there for good."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch import torchrun
from tests.programs.reducer_keys import ANSWERED_STEPS, CASES

SETTLED = 3
"""Steps after which every key that stays has been set, but for what a slow machine may add:"""
ONCE = 2
"""one key that all ranks share where one looked, and the like."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    torchrun("reducer_keys.py", folder, has_dynamo=False)
    return folder


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_the_store_does_not_grow_with_the_steps(case: str, out: Path) -> None:
    counts = json.loads((out / f"{case}.json").read_text())
    assert len(counts) >= ANSWERED_STEPS
    assert max(counts[SETTLED:]) <= counts[SETTLED] + ONCE, counts
