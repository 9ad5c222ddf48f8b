"""`ddptrace bench hooks`, and PowerSGD in several buckets over Gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benches import bench, refusal
from tests.launch import torchrun

GRADIENTS = 6 * (1024 * 1024 + 1024) * 4
"""Of the mlp, in bytes; two ranks in a ring send as many each."""
BRIEFLY = ("--rounds", 1, "--steps", 1, "--warmup", 1)


@pytest.fixture(scope="module", params=["ddp", "bucketed"])
def compared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("hooks")
    done = bench("hooks", "--workload", "mlp", "--reducer", request.param, *BRIEFLY, out=out)
    assert done.stdout == (out / "hooks.md").read_text() + "\n"
    return request.param, out


def measured(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "hooks.json").read_text())["measured"][0]
    return found


def test_each_hook_sends_as_many_bytes_as_it_promises(compared: tuple[str, Path]) -> None:
    reducer, out = compared
    shares = {name: sent["nbytes"] / GRADIENTS for name, sent in measured(out)["sent"].items()}
    assert shares["none"] == pytest.approx(1, abs=1e-4), "the reducer's own numbers are a few bytes"
    assert shares["fp16"] == pytest.approx(0.5, abs=1e-4)
    # rank 4: two matrices of 1024 by 4 for one of 1024 by 1024, and the biases as they are
    assert shares["PowerSGD"] == pytest.approx((2 * 1024 * 4 + 1024) / (1024 * 1024 + 1024), abs=1e-4)
    if reducer == "bucketed":
        assert shares["bf16"] == pytest.approx(0.5, abs=1e-4)


def test_the_error_is_that_of_what_each_hook_leaves_out(
    compared: tuple[str, Path],
) -> None:
    reducer, out = compared
    errors = measured(out)["errors"]
    assert errors["none"] < 1e-6
    assert 1e-4 < errors["PowerSGD"] < 0.9
    assert 0.01 < errors["fp16"] < 0.9, "the mlp's gradients are so small that fp16 has few digits for them"
    assert measured(out)["coarse_ratio"] > 0.99
    if reducer == "bucketed":
        assert 1e-3 < errors["bf16"] < 2**-8, "8 bits of mantissa"


def test_what_was_not_measured_is_a_row_that_says_why(compared: tuple[str, Path]) -> None:
    reducer, out = compared
    one, text = measured(out), (out / "hooks.md").read_text()
    refused = {"bf16", "quantization"} if reducer == "ddp" else {"quantization"}
    assert set(one["notes"]) - set(one["times_ns"]) == refused
    assert all(f"{name} was not measured: " in text for name in refused)
    assert ("BF16 all reduce" in text) == (reducer == "ddp"), "stock DDP's own words"


def test_power_sgd_runs_in_one_bucket_under_stock_ddp_and_in_several_under_ours(compared: tuple[str, Path]) -> None:
    reducer, out = compared
    # three all-reduces for each bucket: what is not compressed, P, Q; and one of our reducer's own
    assert measured(out)["sent"]["PowerSGD"]["calls"] == (3 if reducer == "ddp" else 3 * 6 + 1)
    said = "in one bucket: with several, stock DDP on Gloo hangs" in (out / "hooks.md").read_text()
    assert said == (reducer == "ddp")


@pytest.mark.parametrize("setting", ["find_unused", "all_used"])
def test_power_sgd_in_several_buckets_over_gloo_comes_to_its_end(setting: str) -> None:
    # each would wait for the other's callbacks, or meet another bucket's, did buckets not take turns
    said = torchrun("power_sgd.py", setting)
    assert said.count("6 buckets, same True") == 2


def test_an_unknown_hook_is_one_sentence(tmp_path: Path) -> None:
    assert "no hook is called 'zip'" in refusal("hooks", "--hooks", "zip", "--out", tmp_path)
