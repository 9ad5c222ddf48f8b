"""What is watched of pipelines, by private names of torch: if one has moved, training does not notice."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ddptrace.capture.collectives.calls import ExpectedMessages
from ddptrace.capture.collectives.groups import Groups, sent_to_each
from ddptrace.capture.collectives.tap import Operator
from ddptrace.capture.origins.modules import ModuleNames
from ddptrace.capture.surface import Patches, Surface
from ddptrace.capture.units import pipeline
from ddptrace.capture.units.pipeline import PipelineWatch
from ddptrace.capture.units.unit_records import UnitRecords
from ddptrace.record import Recorder

COMPUTATIONS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
MESSAGES = ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops")
STAGE = (*COMPUTATIONS, *MESSAGES)


class Watching:
    """A `PipelineWatch` of classes in the place of torch's, whose methods return their own names."""

    def __init__(self, missing: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        methods: dict[str, Any] = {
            name: lambda self, *args, name=name, **kwargs: name for name in STAGE if name != missing
        }
        self.stage: Any = type("Stage", (), methods)
        self.schedule: Any = type("Schedule", (), {"step": lambda self, run: run()})
        base = type("Base", (), {"_maybe_compute_loss": lambda self, *args: "loss"})
        self.notes: list[str] = []
        self.surface = Surface("pipelines", lambda kind, message: self.notes.append(message))
        self.patches, self.recorder = Patches(), Recorder(lambda: folder)
        collectives: Any = types.SimpleNamespace(messages=ExpectedMessages())
        records, groups, names = UnitRecords(self.recorder), Groups(self.recorder), ModuleNames([])
        self.watch = PipelineWatch(records, self.surface, collectives, groups, names)
        schedules = types.SimpleNamespace(
            PipelineScheduleSingle=self.schedule, PipelineScheduleMulti=type("Multi", (self.schedule,), {"step": 1}),
            _PipelineSchedule=base,
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, pipeline.SCHEDULES, schedules)
        monkeypatch.setitem(sys.modules, pipeline.STAGES, types.SimpleNamespace(_PipelineStageBase=self.stage))
        self.before = [dict(vars(one)) for one in (self.stage, self.schedule, base)]
        self.classes = (self.stage, self.schedule, base)
        self.surface.call(self.watch.install, self.patches)

    def is_as_before(self) -> bool:
        now = [dict(vars(one)) for one in self.classes]
        return all(one[name] is was[name] for one, was in zip(now, self.before, strict=True) for name in was)


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Watching] = []

    def watch(missing: str = "") -> Watching:
        made.append(Watching(missing, tmp_path, monkeypatch))
        return made[-1]

    yield watch
    for one in made:
        one.recorder.close()


def test_the_classes_are_watched_once_and_are_as_before_at_the_end(watching: Any) -> None:
    one = watching()
    once = dict(vars(one.stage))
    one.surface.call(one.watch.install, one.patches)  # another model has run for the first time
    assert dict(vars(one.stage)) == once and not one.is_as_before()
    assert one.patches.undo() == [] and one.is_as_before()


@pytest.mark.parametrize("missing", STAGE)
@pytest.mark.filterwarnings("ignore:ddptrace stopped watching pipelines")
def test_a_method_that_has_moved_costs_only_the_pipelines(missing: str, watching: Any) -> None:
    one = watching(missing)
    assert not one.surface.on and len(one.notes) == 1
    stage = one.stage()
    assert [getattr(stage, name)(0) for name in STAGE if name != missing] == [n for n in STAGE if n != missing]
    assert one.patches.undo() == [] and one.is_as_before()


@pytest.mark.filterwarnings("ignore:ddptrace stopped watching pipelines")
def test_an_attribute_that_has_moved_costs_only_the_pipelines(watching: Any) -> None:
    """The stage above has none of those that are read."""
    one = watching()
    stage, schedule = one.stage(), one.schedule()
    assert schedule.step(lambda: [getattr(stage, name)(0) for name in STAGE]) == list(STAGE)
    assert not one.surface.on and len(one.notes) == 1


def test_an_error_of_the_program_passes_and_no_schedule_runs_any_more(watching: Any) -> None:
    one = watching()

    def fails() -> None:
        assert one.watch._running.watched is not None
        raise MemoryError

    with pytest.raises(MemoryError):
        one.schedule().step(fails)
    assert one.watch._running.watched is None and one.surface.on


def test_a_message_is_known_by_the_address_of_its_tensor_once() -> None:
    messages, tensor = ExpectedMessages(), torch.ones(3)
    send, reduce = (Operator(name, None, 1, None, (0,), ()) for name in ("send", "all_reduce"))
    messages.expect([tensor], "part")
    assert messages.take(([torch.ones(3)], None), send) is None and messages.take(([tensor], None), reduce) is None
    assert messages.take(([tensor], None), send) == "part" and messages.take(([tensor], None), send) is None


def test_what_an_all_to_all_sends_to_each_rank_is_told_by_its_split_or_its_tensors() -> None:
    single = Operator("all_to_all_single", None, 2, None, (1,), (0,), splits=3)
    rows = torch.ones(6, 2)
    assert sent_to_each(single, (None, rows, None, [1, 2, 3]), rows.nbytes) == [8, 16, 24]
    assert sent_to_each(single, (None, rows[:0], None, [0, 0, 0]), 0) == [0, 0, 0]
    listed = Operator("all_to_all", None, 2, None, (1,), (0,))
    assert sent_to_each(listed, (None, list(rows.split([5, 1])), None), rows.nbytes) == [40, 8]
    unknown = Operator("all_to_all_single", None, 2, None, (1,), (0,))
    assert sent_to_each(unknown, (None, rows, None), rows.nbytes) == []
