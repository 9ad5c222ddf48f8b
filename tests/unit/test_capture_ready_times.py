"""Ready times of one backward: in order, and in records that hold seven each within their reach."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddptrace.capture.gradients.reducer_records import ReadyTimes, ReducerRecords, ready_hook
from ddptrace.schema import DELTA_MAX_NS


class _Written:
    """What a recorder is given."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, int, list[int], list[int]]] = []

    def ready(self, *fields: Any) -> None:
        self.records.append(fields)  # type: ignore[arg-type]


def test_gradients_are_told_in_the_order_in_which_they_came_and_those_that_did_not_are_not() -> None:
    ready = ReadyTimes(4)
    ready.times[3], ready.times[0], ready.times[2] = 30, 10, 20
    assert ready.in_order() == ([0, 2, 3], [10, 20, 30])
    ready.clear()
    assert ready.in_order() == ([], [])


@pytest.mark.parametrize("late_ns", [0, DELTA_MAX_NS + 1])
def test_every_gradient_is_in_a_record_whose_deltas_have_room_for_it(late_ns: int) -> None:
    ready, written = ReadyTimes(17), _Written()
    ready.times[:] = [1_000 + index + (late_ns if index >= 3 else 0) for index in range(17)]
    ReducerRecords(written, None).ready(1, 5, ready)  # type: ignore[arg-type] # nothing else of them is used
    sizes = [len(parameters) for *_, parameters in written.records]
    assert sizes == ([3, 7, 7] if late_ns else [7, 7, 3])
    told = {
        parameter: base + delta
        for _, _, base, deltas, parameters in written.records
        for delta, parameter in zip(deltas, parameters, strict=True)
    }
    assert told == dict(enumerate(ready.times))
    assert all(0 <= delta <= DELTA_MAX_NS for *_, deltas, _ in written.records for delta in deltas)


def test_a_backward_that_is_compiled_with_its_hooks_keeps_its_one_graph() -> None:
    ready, sampling, collectives = ReadyTimes(1), SimpleNamespace(live=True), SimpleNamespace(reducer=0)
    hook = ready_hook(ready, 0, 3, collectives, sampling)  # type: ignore[arg-type] # nothing else of them is used

    def accumulated(gradient: torch.Tensor) -> torch.Tensor:
        hook(gradient)
        return gradient * 2

    torch.compile(accumulated, backend="eager", fullgraph=True)(torch.ones(2))
    assert (ready.times, collectives.reducer) == ([0], 0)
    accumulated(torch.ones(2))
    assert ready.times[0] and collectives.reducer == 3
