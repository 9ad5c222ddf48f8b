"""The ladder and `ddptrace bench ddp` with real ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ddptrace
from tests.benches import bench
from tests.launch import torchrun

NBYTES = 4 * (1_856 + 221_952 + 820_992 + 3_280_384 + 2_570)
"""Of the convnet's float32 parameters: stem, three stages, head, each counted by hand from its convolutions."""
RUNGS = ("naive", "flat", "overlap", "bucketed")


def gradients(tmp_path: Path, ranks: int) -> list[dict[str, list[torch.Tensor]]]:
    torchrun("ladder_bits.py", tmp_path, ranks=ranks)
    return [torch.load(tmp_path / f"{rank}.pt") for rank in range(ranks)]


def test_on_two_ranks_every_rung_gives_the_bits_of_stock_ddp(tmp_path: Path) -> None:
    # a sum of two terms has one order only
    for saved in gradients(tmp_path, 2):
        assert len(saved["ddp"]) > 50 and all(value.abs().sum() > 0 for value in saved["ddp"])
        for rung in RUNGS:
            assert all(torch.equal(a, b) for a, b in zip(saved[rung], saved["ddp"], strict=True)), rung


def test_on_three_ranks_every_rung_gives_the_gradients_of_stock_ddp_but_for_rounding(tmp_path: Path) -> None:
    for saved in gradients(tmp_path, 3):
        for rung in RUNGS:
            for a, b in zip(saved[rung], saved["ddp"], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("bench")
    asked = ("--models", "convnet", "--caps", "2", "--rounds", 1, "--steps", 2, "--warmup", 1)
    done = bench("ddp", *asked, "--json", out=out)
    told: dict[str, Any] = json.loads(done.stdout)
    return out, told


def test_the_command_measures_each_strategy_and_stock_ddp_a_second_time(benched: tuple[Path, dict[str, Any]]) -> None:
    out, told = benched
    (cell,) = told["measured"][0]["cells"]
    assert list(cell["times_ns"]) == ["naive", "flat", "overlap", "bucketed", "ddp", "null control"]
    assert all([len(steps) for steps in times] == [2] for times in cell["times_ns"].values())
    assert [row[1] for row in told["sheet"]["grids"][0]["rows"]] == [*RUNGS, "ddp"]
    for strategy, seen in cell["watched"].items():
        assert len(seen["comm_ns"]) == len(seen["step_ns"]) == 2, strategy
        assert all(0 < comm < step for comm, step in zip(seen["comm_ns"], seen["step_ns"], strict=True)), strategy
    assert all((out / f"ddp.{ending}").is_file() for ending in ("md", "html"))


def test_the_traces_show_what_each_strategy_sends_and_that_only_after_backward_nothing_hides(
    benched: tuple[Path, dict[str, Any]],
) -> None:
    out, told = benched
    (cell,) = told["measured"][0]["cells"]
    sent = {strategy: gradients_sent(out / "runs" / f"convnet-cap2-2ranks-{strategy}") for strategy in RUNGS}
    assert len(sent["flat"]) == 1 and len(sent["naive"]) == len(sent["overlap"]) == cell["parameters"]
    assert 1 < len(sent["bucketed"]) < cell["parameters"]
    assert {sum(nbytes) for nbytes in sent.values()} == {cell["nbytes"]} == {NBYTES}
    hidden = {strategy: cell["traced"][strategy]["hidden_ns"] for strategy in RUNGS}
    assert hidden["naive"] == hidden["flat"] == 0 < hidden["overlap"]


def gradients_sent(run: Path) -> list[int]:
    """Bytes of each all-reduce of gradients in a step of rank 0: of float32, as pulses of the reducer are not."""
    result = ddptrace.analyze(run)
    step = next(row.step for row in result.steps if row.profiled and row.step)
    rows = [row for row in result.collectives if (row.rank, row.step, row.part) == (0, step, 0)]
    return [row.nbytes or 0 for row in rows if row.op == "all_reduce" and "float" in row.dtype]
