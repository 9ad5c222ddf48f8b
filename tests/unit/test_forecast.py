"""A report gets advice where a run allows it, and loses nothing where it does not."""

from __future__ import annotations

import pytest

from ddptrace.analysis.whatif import answer
from ddptrace.analysis.whatif.answer import Forecast
from ddptrace.analysis.whatif.observed import ObservedRank, observe
from ddptrace.predictor import LARGE, MOST_BUCKETS, forecast_from
from tests.unit.made_whatif import MS, Made, in_buckets, made_ranks


def ranks_of(made: Made, size: int) -> list[ObservedRank]:
    return [observe(one) for one in made_ranks(made, in_buckets(made, size))]


def test_a_run_has_its_advice_and_many_ranks_on_paper() -> None:
    found = forecast_from(ranks_of(Made(byte_ns=20.0), 8), 2)
    assert found.refusal is None
    assert found.advice is not None and found.advice.caps_mb
    assert found.scale is not None and len(found.scale) == 15


def test_what_would_take_long_is_left_to_the_command_for_it() -> None:
    made = Made(numels=(1000,) * (MOST_BUCKETS + 1), gaps=(MS,) * (MOST_BUCKETS + 1), steps=3)
    assert forecast_from(ranks_of(made, 1), 2) == Forecast(refusal=LARGE)


def test_a_run_that_cannot_be_played_again_is_told_with_the_reason() -> None:
    refusal = forecast_from(ranks_of(Made(steps=2), 8), 2).refusal
    assert refusal is not None and "record more steps" in refusal


def test_a_rank_that_cannot_be_observed_is_the_reason() -> None:
    ranks = ranks_of(Made(byte_ns=20.0), 8)
    assert forecast_from([ranks[0], "rank 1 is odd"], 2) == Forecast(refusal="rank 1 is odd")


def test_whatever_is_wrong_with_a_forecast_the_report_is_written_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(predictor: object) -> Forecast:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(answer, "forecast_of", fails)
    found = forecast_from(ranks_of(Made(byte_ns=20.0), 8), 2)
    assert found == Forecast(refusal="the forecast failed (ZeroDivisionError: float division by zero)")
