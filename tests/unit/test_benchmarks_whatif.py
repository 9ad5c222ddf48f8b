"""What `python -m benchmarks whatif` makes of its measurements."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.whatif import Options
from benchmarks.whatif_program import LOOPBACK, Tried, tried_of
from benchmarks.whatif_sheet import sheet
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import markdown

MS = 1_000_000


def row(error: float, noise: float = 0.01, exposed_off: float | None = 0.05, of_step: float = 0.01) -> dict[str, Any]:
    return {
        "model": "mlp",
        "rate": "1gbit",
        "known": "cap 5",
        "asked": "cap 1",
        "step_ns": round(100 * MS * (1 + error)),
        "measured_ns": 100.0 * MS,
        "error_ratio": error,
        "noise_ratio": noise,
        "exposed_off_ratio": exposed_off,
        "exposed_of_step_ratio": of_step,
        "is_within": abs(error) < 0.05,
        "contention_is_known": True,
    }


def run(*rows: dict[str, Any], regret: float = 0.0) -> dict[str, Any]:
    truth = {"step_ns": 100.0 * MS, "exposed_ns": 20.0 * MS, "noise_ratio": 0.01}
    regrets = [
        {
            "model": "mlp",
            "rate": "1gbit",
            "known": "cap 5",
            "advised": "cap 1",
            "regret_ratio": regret,
            "noise_ratio": 0.01,
        }
    ]
    return {
        "model": "mlp",
        "rate": "1gbit",
        "truths": {"cap 1": truth, "cap 5": truth},
        "replays": {"cap 1": 0.001, "cap 5": -0.002},
        "rows": list(rows),
        "regrets": regrets,
    }


def test_errors_are_told_as_median_and_90_percent_and_held_against_the_noise() -> None:
    made = sheet({}, "", [run(row(0.01), row(-0.02), row(0.2), row(0.05, noise=0.04))])
    assert "off by 3.5% in the median and 20.0% at 90 % (required: at most 3.0% and 8%: missed)" in made.words[0]
    assert "75 % are as near as noise allows" in made.words[0]
    assert "8%: met)" in sheet({}, "", [run(row(0.01), row(-0.02), row(0.03))]).words[0]


def test_ranks_of_one_host_are_told_apart_from_those_that_have_a_link_between_them() -> None:
    apart = run(row(0.01))
    together = run(row(0.2)) | {"rate": LOOPBACK}
    words = sheet({}, "", [apart, together]).words
    assert [line.split(":")[0] for line in words] == [*["Between hosts"] * 2, *[words[2].split(":")[0]] * 2]
    assert "off by 1.0% in the median" in words[0]
    assert words[2].startswith("On one host") and "off by 20.0% in the median" in words[2]


def test_exposed_time_is_near_within_a_tenth_of_it_or_little_of_the_step() -> None:
    rows = [
        row(0.0),
        row(0.0, exposed_off=0.5, of_step=0.01),
        row(0.0, exposed_off=0.5, of_step=0.1),
        row(0.0, exposed_off=None, of_step=0.1),
    ]
    assert "50 % in exposed time" in sheet({}, "", [run(*rows)]).words[0]


@pytest.mark.parametrize(("regret", "good"), [(0.02, "1 of 1"), (0.05, "0 of 1")])
def test_advice_is_good_within_3_percent_of_the_best(regret: float, good: str) -> None:
    assert good in sheet({}, "", [run(row(0.0), regret=regret)]).words[1]


def test_what_was_left_out_is_said_first() -> None:
    made = sheet({}, "network namespaces need root", [])
    assert made.words[0].startswith("Links with a set rate are skipped: network namespaces need root")
    assert "Nothing was measured" in markdown(made)


def test_caps_alone_are_what_predictions_are_made_of() -> None:
    tried = tried_of((1.0, 25.0), (1, 2), fp16=True)
    assert [one.name for one in tried] == ["cap 1", "cap 25", "cap 5 no_sync 2", "cap 5 fp16"]
    assert [one.is_plain for one in tried] == [True, True, False, False]
    assert Tried(5.0, backwards=2).setting.accumulate == 2


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(DdptraceError, match="no workload is called 'vgg'"):
        Options((LOOPBACK,), ("vgg",))
