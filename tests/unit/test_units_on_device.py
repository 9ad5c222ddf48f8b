"""FSDP units of a device: the clock of its stream, and steps under settings held against runs made with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptrace.analysis.rank_view import view_of
from ddptrace.analysis.timeline.forecast import TimelinePredictor
from ddptrace.analysis.units.advice import best_ways, calls_of
from ddptrace.analysis.units.clock import clock_of
from ddptrace.analysis.units.forecast import NEVER_AHEAD, UnitPredictor
from ddptrace.analysis.units.script import script_of
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.errors import DdptraceError
from ddptrace.load.tables import Run
from tests.unit.made_device_units import COPY, UPDATE, device_units_run
from ddptrace.analysis.analyze import analyze_run
from tests.unit.made_units import MS, Plan

COMM_BOUND = Plan(nbytes=(4, 4, 4, 4, 4, 4), compute_ms=1)
EVEN = Plan(nbytes=(4, 4, 4, 4, 4, 4), compute_ms=4)
COMPUTE_BOUND = Plan(nbytes=(2, 2, 2, 2, 2, 2), compute_ms=6)


def predictor_of(made: Run) -> UnitPredictor:
    result = analyze_run(made)
    scripts = [script for rank in made.ranks if (script := script_of(view_of(rank))) is not None]
    return UnitPredictor(result, scripts)


def step_ns(plan: Plan) -> float:
    return predictor_of(device_units_run(plan)).recorded_ns


@pytest.mark.parametrize("plan", [COMM_BOUND, EVEN, COMPUTE_BOUND])
@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({}, Setting()),
        ({"reshards": False}, Setting(reshard_after_forward=False)),
        ({"ahead": 2, "ahead_backward": 2}, Setting(forward_prefetch=2, backward_prefetch=2)),
        ({"ahead_backward": 0}, Setting(backward_prefetch=0)),
    ],
)
def test_settings_are_predicted_as_runs_made_with_them_take(
    plan: Plan, changed: dict[str, int], setting: Setting
) -> None:
    found = predictor_of(device_units_run(plan)).predict("asked", setting)
    assert found.step_ns == pytest.approx(step_ns(replace(plan, **changed)), rel=0.02)
