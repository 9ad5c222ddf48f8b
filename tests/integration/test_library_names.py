"""The libraries whose functions are known by name have functions of these names."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ddptrace.capture.origins.frames import LIBRARY_ORIGINS, LIBRARY_PARAMETERS, PASSING_ON
from tests.integration.test_frameworks import need_package
from tests.unit.test_capture_origins import codes

NAMES = sorted({*PASSING_ON, *(name for name, _ in LIBRARY_ORIGINS), *(name for name, *_ in LIBRARY_PARAMETERS)})
BRINGS = {"lightning_fabric": "lightning", "pytorch_lightning": "lightning", "torchmetrics": "lightning"}
"""Packages that another one brings."""


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_tells_something_is_where_it_is_looked_for(name: str) -> None:
    file, _, function = name.partition(":")
    package = file.partition("/")[0]
    need_package(BRINGS.get(package, package))
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    path = Path(found.origin).parents[1] / file
    assert path.exists()
    if function:
        functions = codes(compile(path.read_text(), path, "exec"))
        assert any(code.co_qualname.startswith(function) for code in functions)
