"""What is watched of `fully_shard`, by its private names: if one has moved, training does not notice."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from ddptrace.capture.collectives.groups import Groups
from ddptrace.capture.origins.modules import ModuleNames
from ddptrace.capture.surface import Patches, Surface, ThreadState
from ddptrace.capture.units import fsdp
from ddptrace.capture.units.fsdp import FsdpWatch
from ddptrace.capture.units.unit_records import UnitRecords
from ddptrace.record import Recorder

METHODS = ("pre_forward", "pre_backward", "unshard", "wait_for_unshard", "post_backward", "reshard")


def group_class(*missing: str) -> Any:
    """A class with torch's methods, each of which returns its own name."""
    methods: dict[str, Any] = {name: lambda self, name=name: name for name in METHODS if name not in missing}
    return type("FSDPParamGroup", (), methods)


class Watching:
    """An `FsdpWatch` of a class in the place of torch's."""

    def __init__(self, owner: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owner = owner
        self.notes: list[str] = []
        self.surface = Surface("units", lambda kind, message: self.notes.append(message))
        self.patches, self.thread = Patches(), ThreadState()
        self.recorder = Recorder(lambda: folder)
        groups, names = Groups(self.recorder), ModuleNames([])
        self.watch = FsdpWatch(UnitRecords(self.recorder), self.surface, self.thread, groups, names)
        monkeypatch.setitem(sys.modules, fsdp.FULLY_SHARD, types.SimpleNamespace(FSDPParamGroup=owner))
        self.install()

    def install(self) -> None:
        self.surface.call(self.watch.install, self.patches)


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Watching] = []

    def watch(*missing: str) -> Watching:
        made.append(Watching(group_class(*missing), tmp_path, monkeypatch))
        return made[-1]

    yield watch
    for one in made:
        one.recorder.close()


def test_a_program_that_does_not_shard_is_left_alone(watching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = watching()
    one.patches.undo()
    before = dict(vars(one.owner))
    monkeypatch.delitem(sys.modules, fsdp.FULLY_SHARD)
    one.install()
    assert dict(vars(one.owner)) == before and fsdp.FULLY_SHARD not in sys.modules


def test_the_class_is_watched_once_and_is_as_before_at_the_end(watching: Any) -> None:
    one = watching()
    once = dict(vars(one.owner))
    one.install()  # another model has run for the first time
    assert dict(vars(one.owner)) == once
    assert one.patches.undo() == []
    assert {name: vars(one.owner)[name](None) for name in METHODS} == {name: name for name in METHODS}
    assert all(vars(one.owner)[name] is not once[name] for name in METHODS)


@pytest.mark.parametrize("missing", METHODS)
@pytest.mark.filterwarnings("ignore:ddptrace stopped watching units")
def test_a_method_that_has_moved_costs_only_the_units(missing: str, watching: Any) -> None:
    one = watching(missing)
    assert not one.surface.on and len(one.notes) == 1
    group = one.owner()
    assert [getattr(group, name)() for name in METHODS if name != missing] == [n for n in METHODS if n != missing]


@pytest.mark.filterwarnings("ignore:ddptrace stopped watching units")
def test_an_attribute_that_has_moved_costs_only_the_units(watching: Any) -> None:
    """The class above has none of those that are read."""
    one = watching()
    group = one.owner()
    assert [getattr(group, name)() for name in METHODS] == list(METHODS)
    assert not one.surface.on and len(one.notes) == 1
    assert one.thread.unit is None


def test_an_error_of_the_program_passes_and_the_thread_communicates_for_no_unit_any_more(
    watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = watching()

    def fails(self: Any) -> None:
        assert one.thread.unit is not None
        raise MemoryError

    one.patches.undo()
    one.owner.unshard = fails
    one.watch._is_installed = False
    one.install()
    part = one.watch._records.part(1, 0)
    monkeypatch.setattr(one.watch, "_watch", lambda group: fsdp.Watched(1, {0: part}))
    group = one.owner()
    group._training_state = TrainingState.IDLE
    with pytest.raises(MemoryError):
        group.unshard()
    assert one.thread.unit is None and one.surface.on
