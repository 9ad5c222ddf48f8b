"""`ddptrace bench no-sync`: the same samples, fewer updates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from tests.benches import bench, refusal

COUNTS = ("1", "4")
MICRO_BATCHES = 16
NBYTES = 4 * (256 * 192 + 64 * 192 + 12 * 192**2 + 13 * 192 + 193 * 256)
"""Of the model's float32 parameters: tokens, positions, a block of width 192, the head with its bias."""


@pytest.fixture(scope="module", params=["ddp", "bucketed"])
def swept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("no-sync")
    asked = ("--reducer", request.param, "--counts", ",".join(COUNTS), "--micro-batches", MICRO_BATCHES)
    done = bench("no-sync", *asked, "--rounds", 1, "--steps", 1, "--warmup", 1, out=out)
    assert done.stdout == (out / "no-sync.md").read_text() + "\n"
    return out


def measured(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "no-sync.json").read_text())["measured"][0]
    return found


def test_an_update_of_four_micro_batches_communicates_as_much_as_one_of_one(swept: Path) -> None:
    moved = {}
    for count in COUNTS:
        result = ddptrace.analyze(swept / "runs" / f"n-{count}")
        steps = {(row.rank, row.step) for row in result.steps if row.profiled}
        rows = [row for row in result.buckets if (row.rank, row.step) in steps]
        moved[count] = sum(row.nbytes or 0 for row in rows) / len(steps)
    assert moved["1"] == moved["4"] == measured(swept)["nbytes"] == NBYTES


def test_curves_begin_alike_learn_and_have_a_point_after_the_same_samples(swept: Path) -> None:
    one = measured(swept)
    losses = one["losses"]
    assert list(losses) == list(COUNTS) and losses["1"][0] == losses["4"][0]
    points = MICRO_BATCHES // 4
    assert [len(curve) for curve in losses.values()] == [points + 1] * 2
    assert one["samples_a_point"] == 4 * 4 * 2, "4 micro-batches of 4 samples on each of 2 ranks"
    assert all(curve[-1] < curve[0] - 0.1 for curve in losses.values())
    assert losses["1"][-1] < losses["4"][-1] - 0.1, "four times as many updates, with the same learning rate"


def test_the_words_state_the_losses_and_the_learning_rate(swept: Path) -> None:
    text, losses = (swept / "no-sync.md").read_text(), measured(swept)["losses"]
    assert "After the same 128 samples, with the same learning rate" in text
    assert f"{losses['1'][-1]:.3f} nats at n = 1, {losses['4'][-1]:.3f} at 4" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--counts", "2,4"), "are compared to 1"),
        (("--counts", "1,8", "--micro-batches", "4"), "train on at least 8"),
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal("no-sync", *words, "--out", tmp_path)
