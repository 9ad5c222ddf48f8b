"""What does not run on the test device still does not, and a forgotten `record_stream` does harm there, as on a GPU."""

from __future__ import annotations

import json

import pytest

from tests.device.conftest import RunProgram
from tests.device.refused import EXPECTED
from tests.device.truth import Json

RANKS = 2
FREED = ("stock-plain", "own-plain", "own-unused", "own-fp16_hook", "fsdp2", "pipeline")


@pytest.fixture(scope="module")
def errors(on_device: RunProgram, tmp_path_factory: pytest.TempPathFactory) -> Json:
    out = tmp_path_factory.mktemp("refused")
    on_device("refused.py", out, ranks=RANKS)
    told: Json = json.loads((out / "told-0.json").read_text())
    assert told.keys() == EXPECTED.keys()
    return told


@pytest.mark.parametrize("what", EXPECTED)
def test_what_is_listed_as_refused_still_is(errors: Json, what: str) -> None:
    assert errors[what] is not None, f"{what} runs now: make it a strategy"
    assert EXPECTED[what] in errors[what]


@pytest.fixture(scope="module")
def freed(on_device: RunProgram, tmp_path_factory: pytest.TempPathFactory) -> Json:
    out = tmp_path_factory.mktemp("freed")
    on_device("freed.py", out, *FREED, ranks=RANKS)
    told: Json = json.loads((out / "told-0.json").read_text()) | {"of 1": json.loads((out / "told-1.json").read_text())}
    return told


def test_a_kernel_of_another_stream_needs_record_stream(freed: Json) -> None:
    assert freed["read"] == [1.0, 0.0]


@pytest.mark.parametrize("name", FREED)
def test_a_program_uses_no_memory_that_is_freed(freed: Json, name: str) -> None:
    plain, overwritten = freed[name]
    assert plain == overwritten and freed["of 1"][name][0] == freed["of 1"][name][1]
