"""The optimizer whose step is remote calls: watched once its program has imported it, and let go of."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from ddptrace.capture.rpc.calls import MODULE, DistributedUpdates
from ddptrace.capture.surface import Patches


class Optimizer:
    def step(self, context: int) -> int:
        return context


def test_it_is_found_when_it_has_been_imported_and_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    before, patches = vars(Optimizer)["step"], Patches()
    updates = DistributedUpdates(patches, lambda original: lambda *args: -original(*args))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    updates.look()
    assert not updates.found
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    updates.look()  # another thread still imports it
    assert not updates.found
    monkeypatch.setattr(module, "DistributedOptimizer", Optimizer, raising=False)
    updates.look()
    assert updates.found and Optimizer().step(3) == -3
    assert patches.undo() == [] and vars(Optimizer)["step"] is before
