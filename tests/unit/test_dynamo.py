"""Dynamo is told of each of our modules once, however many traces there are."""

from __future__ import annotations

import sys
from types import CodeType, ModuleType

import pytest

from ddptrace import dynamo
from ddptrace.dynamo import leave_as_it_is


def test_each_module_is_left_once_and_those_that_are_imported_later_too(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[CodeType] = []
    monkeypatch.setattr(dynamo, "_leaving", lambda: left.append)
    first, later, other = (ModuleType(name) for name in ("planted.first", "planted.later", "planted_elsewhere"))
    for module in (first, later, other):
        exec("def function(): pass", vars(module))
    monkeypatch.setitem(sys.modules, first.__name__, first)
    monkeypatch.setitem(sys.modules, other.__name__, other)
    for _ in range(2):
        leave_as_it_is("planted")
    assert left == [first.function.__code__]
    monkeypatch.setitem(sys.modules, later.__name__, later)
    leave_as_it_is("planted")
    assert left == [first.function.__code__, later.function.__code__]
