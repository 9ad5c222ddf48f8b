"""Pipelines (`torch.distributed.pipelining`): each stage of a schedule is a unit.

    step                 a turn of the schedule
    forward_one_chunk    ├ forward of a microbatch ┤├ loss ┤
    get_fwd_send_ops     the messages that come next: whose they are is known by the address of their tensors
    backward_one_chunk                              ├ backward, or that of the inputs alone ┤
    backward_weight_one_chunk                                                               ├ that of the weights ┤

Only this file uses the private names of pipelining. If one of them has moved, pipelines are not recorded.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch.distributed as dist

from ddptrace.capture.by_identity import IdentityMap
from ddptrace.capture.collectives.calls import Collectives
from ddptrace.capture.collectives.groups import Groups, name_of
from ddptrace.capture.origins.modules import ModuleNames
from ddptrace.capture.surface import Patches, Surface
from ddptrace.capture.units.unit_records import BACKWARD, FORWARD, DescribedGroup, UnitRecords
from ddptrace.schema import UnitMark, UnitRole

_now = time.perf_counter_ns

SCHEDULES: Final = "torch.distributed.pipelining.schedules"
STAGES: Final = "torch.distributed.pipelining.stage"
"""The modules of torch that have the schedules and the stages. A program without a pipeline does not import them."""

Method = Callable[..., Any]


class Given(NamedTuple):
    """What a method was called with."""

    owner: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def argument(self, at: int, name: str, default: Any = None) -> Any:
        """Return the argument at this position after `self`, or of this name."""
        return self.args[at] if len(self.args) > at else self.kwargs.get(name, default)


class Computed(NamedTuple):
    """What a method has computed."""

    stage: Any
    mark: UnitMark
    phase: int
    microbatch: int


def _forward(given: Given) -> Computed:
    return Computed(given.owner, UnitMark.COMPUTED, FORWARD, given.argument(0, "fwd_chunk_id"))


def _loss(given: Given) -> Computed | None:
    """The last stage's forward goes on with it."""
    stage = given.argument(0, "stage")
    return Computed(stage, UnitMark.COMPUTED, FORWARD, given.argument(3, "mb_index")) if stage.is_last else None


def _backward(given: Given) -> Computed:
    is_whole = given.argument(2, "full_backward", True)
    mark = UnitMark.COMPUTED if is_whole else UnitMark.COMPUTED_INPUTS
    return Computed(given.owner, mark, BACKWARD, given.argument(0, "bwd_chunk_id"))


def _weights(given: Given) -> Computed:
    return Computed(given.owner, UnitMark.COMPUTED_WEIGHTS, BACKWARD, given.argument(0, "bwd_chunk_id"))


COMPUTATIONS: Final = (
    ("forward_one_chunk", _forward),
    ("backward_one_chunk", _backward),
    ("backward_weight_one_chunk", _weights),
)
"""Methods of a stage."""

MESSAGES: Final = (
    ("get_fwd_recv_ops", "fwd_chunk_id", FORWARD),
    ("get_fwd_send_ops", "fwd_chunk_id", FORWARD),
    ("get_bwd_recv_ops", "bwd_chunk_id", BACKWARD),
    ("get_bwd_send_ops", "bwd_chunk_id", BACKWARD),
)
"""Methods of a stage that make the messages of a microbatch, the name of that argument, and the phase of these."""


@dataclass(slots=True)
class Watched:
    """One schedule. `turns`: how often it has begun."""

    number: int
    turns: int = 0
    units: dict[int, int] = field(default_factory=dict)  # by stage


class Running(threading.local):
    """The schedule that runs on this thread, and its turn."""

    schedule: Any = None
    watched: Watched | None = None
    turn = 0


class PipelineWatch:
    """Watches the schedules and stages of pipelines through the methods of their classes."""

    def __init__(
        self, records: UnitRecords, surface: Surface, collectives: Collectives, groups: Groups, names: ModuleNames
    ) -> None:
        self._records = records
        self._surface = surface
        self._collectives = collectives
        self._groups = groups
        self._names = names
        self._schedules: IdentityMap[Any, Watched] = IdentityMap()
        self._count = 0
        self._running = Running()
        self._is_installed = False

    def install(self, patches: Patches) -> None:
        """Watch the classes, if the program has imported them. Raises AttributeError or KeyError if a name has
        moved."""
        schedules, stages = sys.modules.get(SCHEDULES), sys.modules.get(STAGES)
        if schedules is None or stages is None or self._is_installed:
            return
        self._is_installed = True
        for schedule in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
            patches.replace(schedule, "step", self._turns)
        patches.replace(schedules._PipelineSchedule, "_maybe_compute_loss", self._computes(_loss))
        for name, what in COMPUTATIONS:
            patches.replace(stages._PipelineStageBase, name, self._computes(what))
        for name, argument, phase in MESSAGES:
            patches.replace(stages._PipelineStageBase, name, self._sends(argument, phase))

    # Methods that stand for torch's ----------------------------------------------------------------------------------

    def _turns(self, original: Method) -> Method:
        surface, running = self._surface, self._running

        def step(schedule: Any, /, *args: Any, **kwargs: Any) -> Any:
            surface.call(self._begin, schedule)
            try:
                return original(schedule, *args, **kwargs)
            finally:
                running.schedule = running.watched = None

        return step

    def _computes(self, what: Callable[[Given], Computed | None]) -> Callable[[Method], Method]:
        surface, computed = self._surface, self._computed

        def make(original: Method) -> Method:
            def method(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
                begin = _now()
                result = original(owner, *args, **kwargs)
                if surface.live:
                    surface.call(computed, what, Given(owner, args, kwargs), begin, _now())
                return result

            return method

        return make

    def _sends(self, argument: str, phase: int) -> Callable[[Method], Method]:
        surface, expect = self._surface, self._expect

        def make(original: Method) -> Method:
            def method(stage: Any, /, *args: Any, **kwargs: Any) -> Any:
                messages = original(stage, *args, **kwargs)
                if surface.live and messages:
                    microbatch = args[0] if args else kwargs.get(argument)
                    surface.call(expect, stage, phase, microbatch, messages)
                return messages

            return method

        return make

    # What is recorded of it ------------------------------------------------------------------------------------------

    def _begin(self, schedule: Any) -> None:
        watched = self._schedules.get(schedule)
        if watched is None:
            watched = self._schedules[schedule] = Watched(self._count)
            self._count += 1
        running = self._running
        running.schedule, running.watched, running.turn = schedule, watched, watched.turns
        watched.turns += 1

    def _computed(self, what: Callable[[Given], Computed | None], given: Given, begin: int, end: int) -> None:
        computed = what(given)
        unit = 0 if computed is None else self._unit(computed.stage)
        if unit and computed is not None:
            _, mark, phase, microbatch = computed
            self._records.mark(unit, mark, begin, end, phase=phase, microbatch=microbatch, turn=self._running.turn)

    def _expect(self, stage: Any, phase: int, microbatch: int, messages: list[Any]) -> None:
        unit = self._unit(stage)
        if unit:
            part = self._records.part(unit, phase, UnitRole.OTHER, microbatch, self._running.turn)
            self._collectives.messages.expect([message.tensor for message in messages], part)

    def _unit(self, stage: Any) -> int:
        """Return the unit of a stage in the schedule that runs; 0 if none does."""
        watched = self._running.watched
        if watched is None:
            return 0
        return watched.units.get(stage.stage_index) or self._describe(watched, stage)

    def _describe(self, watched: Watched, stage: Any) -> int:
        schedule = self._running.schedule
        group = stage.group or dist.distributed_c10d._get_default_group()
        ranks = [stage.stage_index_to_group_rank[number] for number in range(stage.num_stages)]
        watched.units[stage.stage_index] = unit = self._records.unit(
            "pipeline",
            self._names.name(stage.submod),
            [DescribedGroup(self._groups.name(name_of(group)), "", UnitRole.OTHER)],
            list(_parameters(stage.submod)),
            stage={
                "pipeline": watched.number,
                "number": stage.stage_index,
                "ranks": [dist.get_global_rank(group, rank) for rank in ranks],
                "schedule": type(schedule).__name__,
                "microbatches": schedule._n_microbatches,
            },
        )
        return unit


def _parameters(module: Any) -> Iterator[dict[str, Any]]:
    for name, parameter in module.named_parameters():
        shard, itemsize = getattr(parameter, "_local_tensor", parameter), parameter.element_size()
        yield {
            "name": name,
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "nbytes": parameter.numel() * itemsize,
            "sharded_nbytes": shard.numel() * itemsize,
        }
