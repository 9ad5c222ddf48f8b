"""A report gets advice where a run allows it, and loses nothing where it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ddptrace import predictor
from ddptrace.analysis.whatif.answer import Forecast
from ddptrace.analysis.whatif.observed import ObservedRank, observe
from ddptrace.cli.analyze import forecast_for
from ddptrace.predictor import LARGE, MOST_BUCKETS, forecast
from tests.made import make_result
from tests.unit.made_whatif import MS, Made, in_buckets, made_ranks


@pytest.fixture
def run_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Made, int], None]:
    """Lets every path hold such a run."""

    class _Plan:
        sources = ()
        world_size = 2

    def held(made: Made, size: int) -> None:
        ranks: list[ObservedRank] = [observe(one) for one in made_ranks(made, in_buckets(made, size))]
        monkeypatch.setattr(predictor, "open_run", lambda paths: _Plan())
        monkeypatch.setattr(predictor, "_ranks", lambda plan, jobs, progress: ranks)

    return held


def test_a_run_has_its_advice_and_many_ranks_on_paper(run_of: Callable[[Made, int], None]) -> None:
    run_of(Made(byte_ns=20.0), 8)
    found = forecast("run")
    assert found.refusal is None
    assert found.advice is not None and found.advice.caps_mb
    assert found.scale is not None and len(found.scale) == 15


def test_what_would_take_long_is_left_to_the_command_for_it(run_of: Callable[[Made, int], None]) -> None:
    run_of(Made(numels=(1000,) * (MOST_BUCKETS + 1), gaps=(MS,) * (MOST_BUCKETS + 1), steps=3), 1)
    assert forecast("run") == Forecast(refusal=LARGE)


def test_a_run_that_cannot_be_played_again_is_told_with_the_reason(run_of: Callable[[Made, int], None]) -> None:
    run_of(Made(steps=2), 8)
    refusal = forecast("run").refusal
    assert refusal is not None and "record more steps" in refusal


def test_whatever_is_wrong_with_a_forecast_the_report_is_written_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: object) -> Forecast:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(predictor, "forecast", fails)
    found = forecast_for(["run"], make_result())
    assert found == Forecast(refusal="the forecast failed (ZeroDivisionError: float division by zero)")
    assert forecast_for(["run"], replace(make_result(), recorded=False)) == Forecast()
    assert forecast_for(["run", "other"], make_result()) == Forecast()
