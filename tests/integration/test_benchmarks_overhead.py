"""`python -m benchmarks overhead`: every mode is measured beside untraced, and single instruments have a cost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import ddptrace
from benchmarks.overhead import EXPERIMENT, MODES, OFF, Options
from benchmarks.overhead_costs import Costs
from ddptrace.errors import DdptraceError
from tests.launch import as_ranks, torchrun


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overhead")
    words = ("--workload", "convnet", "--rounds", "1", "--steps", "1", "--warmup", "1", "--out", str(folder))
    as_ranks(["-m", "benchmarks", "overhead", *words], timeout_s=240)
    return folder


def test_every_mode_is_measured_and_told(out: Path) -> None:
    told = json.loads((out / "overhead.json").read_text())
    (one,) = told["measured"]
    assert set(one["times_ns"]) == set(MODES)
    modes, costs = told["sheet"]["grids"]
    assert [row[0] for row in modes["rows"]] == [mode for mode in MODES if mode != OFF]
    assert len(costs["rows"]) == 8


def test_an_fsdp2_model_is_measured_in_all_modes_without_a_hook(tmp_path: Path) -> None:
    words = (
        "--workload",
        "mlp",
        "--strategy",
        "fsdp2",
        "--modes",
        "always-on,comm hook",
        "--rounds",
        "1",
        "--steps",
        "1",
    )
    torchrun("short_overhead.py", "overhead", *words, "--warmup", "1", "--out", tmp_path, timeout_s=240)
    told = json.loads((tmp_path / "overhead.json").read_text())
    assert set(told["measured"][0]["times_ns"]) == {OFF, "always-on"}
    assert "FSDP2" in told["sheet"]["title"]
    units = list(ddptrace.analyze(tmp_path / "runs" / "always-on-0").units)
    assert {row.name for row in units if row.kind == "fsdp"} == {f"layers.{at}" for at in range(6)}


def test_instruments_cost_something_and_a_record_costs_less_than_a_collective(out: Path) -> None:
    costs = Costs(**json.loads((out / "overhead.json").read_text())["measured"][0]["costs"])
    assert 0 < costs.record_ns < costs.collective_ns < 1e6 and costs.record_ns < costs.bucket_ns < 1e6


def test_always_on_runs_hold_records_and_profiled_ones_a_window(out: Path) -> None:
    for mode, windows in (("always-on-0", 0), ("profiled-0", 1)):
        rank = out / "runs" / mode / "rank-00000"
        assert list(rank.glob("records-*.bin")) and len(list(rank.glob("kineto-*"))) == windows


def test_the_share_of_a_step_adds_up() -> None:
    costs = Costs(1.0, 2.0, 3.0, bucket_ns=10_000.0, stamped_bucket_ns=20_000.0, parameter_ns=1_000.0, unit_ns=1.0)
    # 25 buckets of 10 µs and 150 parameters of 1 µs in a step of 100 ms: 0.4 of 100
    assert costs.share(costs.bucket_ns) == pytest.approx(0.004)
    assert "0.40 % of it without and 0.65 % with" in costs.words()


@pytest.mark.parametrize(("null", "sure"), [((1.0, 1.002), True), ((1.03, 1.031), False), ((0.9, 1.1), False)])
def test_a_null_control_that_lies_beside_1_or_is_wide_is_told(null: tuple[float, float], sure: bool) -> None:
    times = {"off": [[1000]] * 8, "null control": [[round(1000 * x)] for x in null * 4], "always-on": [[1001]] * 8}
    costs = {field.name: 1.0 for field in dataclasses.fields(Costs)}
    found = EXPERIMENT.sheet(
        Options(), [{"setup": {}, "times_ns": times, "costs": costs, "exported": None, "compiled": False}]
    )
    first = "Always-on tracing makes a step 1.0010 times" if sure else "Inconclusive: the null control deviates by "
    assert found.words[0].startswith(first) and ("(95 %)" in found.words[0]) is sure
    assert ("1.0010" in " ".join(found.words)) is sure, "no digits that the noise covers"
    assert found.grids[0].heads[2] == "95 % interval"


def test_the_most_of_few_rounds_is_called_that() -> None:
    times = {"off": [[1000]] * 3, "null control": [[1000]] * 3, "always-on": [[1001], [1002], [1003]]}
    costs = {field.name: 1.0 for field in dataclasses.fields(Costs)}
    found = EXPERIMENT.sheet(
        Options(), [{"setup": {}, "times_ns": times, "costs": costs, "exported": None, "compiled": False}]
    )
    assert "at most 1.0030 (the most of 3 rounds)" in found.words[0]
    assert found.grids[0].heads[2] == "range of the rounds"


@pytest.mark.parametrize(
    "told", [{"modes": ("nothing",)}, {"workload": "nothing"}, {"ranks": (2, 4)}, {"strategy": "nothing"}]
)
def test_a_mistake_is_a_sentence_before_any_rank_starts(told: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(DdptraceError, match=r"nothing|several"):
        Options(**told)  # type: ignore[arg-type]
