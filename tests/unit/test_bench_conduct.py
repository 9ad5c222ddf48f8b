"""What the conductor of all benchmarks adds to each: doubt and evidence. And what is said of bucket caps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddptrace.bench import conduct
from ddptrace.bench.experiment import Repeats
from ddptrace.bench.experiments.buckets import EXPERIMENT, Options
from ddptrace.bench.timing import ROUNDS_SURE
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Sheet
from ddptrace.render.sheet_page import write_sheet

PLAIN = Sheet("name", "title", (), ("A sentence.",), ())


def options(rounds: int) -> Options:
    return Options(repeats=Repeats(rounds=rounds))


@pytest.mark.parametrize(("rounds", "told"), [(1, True), (ROUNDS_SURE - 1, True), (ROUNDS_SURE, False)])
def test_too_few_rounds_are_told(rounds: int, told: bool) -> None:
    words = conduct.with_doubt(PLAIN, options(rounds), []).words
    assert words[-1:] == PLAIN.words and ("proves no difference" in words[0]) is told


def test_ranks_whose_traces_nobody_analysed_are_told_once_with_the_most_of_all_jobs() -> None:
    jobs = [{"ranks_elsewhere": [0, 1]}, {"ranks_elsewhere": [2, 4]}, {}]
    told, *rest = conduct.with_doubt(PLAIN, options(6), jobs).words
    assert told.startswith("The folder is not shared: 2 of 4 ranks wrote their part") and tuple(rest) == PLAIN.words
    assert conduct.with_doubt(PLAIN, options(6), jobs[:1]) == PLAIN


def test_too_many_ranks_are_refused_before_any_is_started(tmp_path: Path) -> None:
    with pytest.raises(
        DdptraceError, match=r"^99999 ranks are more than 16 for each of the \d+ cores here: give --ranks"
    ):
        conduct.conduct("ddptrace.bench.experiments.buckets", Options(ranks=(99999,)), tmp_path)
    assert not list(tmp_path.glob("rank-*"))


def test_what_executions_rest_on_is_told_once() -> None:
    measured = [{"traced": {"a": {"evidence": "backend"}, "b": {"evidence": "callback"}}}, {"traced": {}}]
    (told,) = conduct.with_evidence(PLAIN, measured).setup
    assert told[0] == "executions from" and "profiler window" in told[1] and "approximate" in told[1]
    said = replace(PLAIN, setup=(("executions from", "elsewhere"),))
    assert conduct.with_evidence(said, measured) == said
    assert conduct.with_evidence(PLAIN, [{}]) == PLAIN


def test_what_is_not_finite_becomes_null_in_the_file(tmp_path: Path) -> None:
    write_sheet(PLAIN, {"measured": [{"loss": float("nan"), "error": [float("inf"), 1.5]}]}, tmp_path)

    def refuse(token: str) -> None:
        raise AssertionError(token)

    found = json.loads((tmp_path / "name.json").read_text(), parse_constant=refuse)
    assert found["measured"] == [{"loss": None, "error": [None, 1.5]}]


def curve(**ms: tuple[int, ...]) -> str:
    times = {cap.removeprefix("c"): [[value * 10**6] for value in values] for cap, values in ms.items()}
    true = {"comm_ns": 1, "hidden_ns": 1, "exposed_ns": 0, "overlap_ratio": 1.0, "evidence": "backend"}
    one = {"setup": {}, "nbytes": 1, "times_ns": times, "traced": {f"cap-{cap}": true for cap in times}}
    return EXPERIMENT.sheet(Options(caps_mb=tuple(times)), [one]).words[0]


def test_the_best_cap_and_how_far_the_ends_lie_above_it_are_told() -> None:
    found = curve(c0=(30,) * 6, c1=(10,) * 6, call=(20,) * 6)
    assert "is 1: a step takes 10.0 ms, 3.00 times as long at 0, 2.00 times as long at all; a U-curve" in found


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        ({"c0": (12, 9) * 3, "c1": (10,) * 6, "call": (20,) * 6}, "no clear U"),
        ({"c0": (30,) * 6, "c1": (20,) * 6, "call": (10,) * 6}, "no U-curve here."),
        ({"c1": (10,) * 6, "c2": (20,) * 6, "c4": (30,) * 6}, "one beyond it may be better."),
        ({"c1": (30,) * 6}, "fewer than three caps"),
    ],
)
def test_what_is_no_u_is_not_called_one(ms: dict[str, tuple[int, ...]], said: str) -> None:
    assert said in curve(**ms)


def test_the_intervals_of_few_rounds_are_called_their_range() -> None:
    true = {"comm_ns": 1, "hidden_ns": 1, "exposed_ns": 0, "overlap_ratio": 1.0, "evidence": "backend"}
    heads = [
        EXPERIMENT.sheet(
            Options(caps_mb=("1",)),
            [{"setup": {}, "nbytes": 1, "times_ns": {"1": [[1000]] * rounds}, "traced": {"cap-1": true}}],
        )
        .grids[0]
        .heads[2]
        for rounds in (1, 5, 6)
    ]
    assert heads == ["range of the rounds", "range of the rounds", "95 % interval"]


@pytest.mark.parametrize("caps", [("x",), ("-1",), ("nan",), ("inf",)])
def test_what_is_no_cap_is_refused(caps: tuple[str, ...]) -> None:
    with pytest.raises(DdptraceError, match="a cap is a number of MiB"):
        Options(caps_mb=caps)
