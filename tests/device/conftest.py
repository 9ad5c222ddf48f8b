"""Compiles the test device before the first test that needs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import need
from tests.device.launch import run_on_device

RunProgram = Callable[..., None]
Found = Callable[..., None]


@pytest.fixture(scope="session")
def on_device() -> RunProgram:
    """Call `on_device(program, *arguments, ranks=N)`, as `run_on_device`."""
    from tests.device import native

    need(native.compiler(), "a C++ compiler and Python's headers (apt-get install g++ python3-dev)")
    native.compiled()
    return run_on_device


@pytest.fixture
def found(record_property: Callable[[str, object], None]) -> Found:
    """Call `found(name=value)` with what a check saw, for the summary; what was said last counts."""
    said: dict[str, object] = {}
    record_property("found", said)

    def say(**facts: object) -> None:
        said.update(facts)
        print(*(f"{name}={value}" for name, value in facts.items()))

    return say
