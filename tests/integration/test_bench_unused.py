"""`ddptrace bench unused`: what find_unused_parameters adds to a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benches import bench
from tests.launch import environment, server

PROFILED = 2 * 6
"""Steps of a traced run, of both ranks together."""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unused")
    done = bench("unused", "--workload", "mlp", "--rounds", 1, "--steps", 1, "--warmup", 1, out=out)
    assert done.stdout == (out / "unused.md").read_text() + "\n"
    return out


def measured(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "unused.json").read_text())["measured"][0]
    return found


@pytest.mark.parametrize("reducer", ["ddp", "bucketed"])
def test_only_with_the_setting_a_bitmap_travels_in_each_step(compared: Path, reducer: str) -> None:
    facts = measured(compared)["facts"]
    bitmaps = [facts[f"{reducer}: {case}"]["bitmaps"] for case in ("off", "on", "on, a layer left out")]
    assert bitmaps == [0, PROFILED, PROFILED]


@pytest.mark.parametrize("reducer", ["ddp", "bucketed"])
def test_the_walk_through_the_graph_takes_time(compared: Path, reducer: str) -> None:
    assert 0 < measured(compared)["walks_ns"][reducer] < 1_000_000_000


def test_every_case_has_a_row_and_both_reducers_a_sentence(compared: Path) -> None:
    text = (compared / "unused.md").read_text()
    for reducer in ("ddp", "bucketed"):
        assert f"{reducer} with 2 ranks: find_unused_parameters makes a step" in text
        assert text.count(f"| {reducer} ") == 3
    assert "one of 6 layers at random" in text


def test_a_model_without_equal_layers_is_one_sentence(tmp_path: Path) -> None:
    argv = ["-m", "ddptrace", "bench", "unused", "--workload", "convnet", "--out", str(tmp_path)]
    well, said = server().run(argv, 2, environment(), 120)  # the ranks find it, which have the model
    assert not well and "no layer of convnet can be left out" in said and "Traceback" not in said
