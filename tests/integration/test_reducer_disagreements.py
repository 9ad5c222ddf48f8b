"""Ranks with unlike communication hooks, or models converted on one rank: each ends in a sentence on both, in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_reducer_misuse import assert_told, outcome
from tests.launch import torchrun
from tests.programs.reducer_disagreements import CASES

SAME_HOOK = "register the same communication hook, with the same settings and at the same place, on every rank"
BEFORE_WRAPPING = "convert or move a module before it is wrapped"
SILENT = "rank 1 waits for bucket {} without communication, as its hook left it"
SAYINGS: dict[str, tuple[str, str]] = {
    # what rank 0 is told, which does right, and what rank 1 is told
    "hook_on_one_rank": ("fp16_compress_hook with a ProcessGroup() where rank 0 has no communication hook", SAME_HOOK),
    "another_hook": ("Rank 1 has the communication hook torch.distributed.algorithms.ddp_comm_hooks.", SAME_HOOK),
    "another_hook_inside_torchs_wrapper": ("bf16_compress_hook where rank 0 has", SAME_HOOK),
    "another_rank_of_power_sgd": ("matrix_approximation_rank=4", "matrix_approximation_rank=2"),
    "hook_after_a_step_on_one_rank": (
        "rank 1 waits for the registration of a communication hook",
        "the registration of a communication hook",
    ),
    "another_hook_after_a_step": ("bf16_compress_hook", SAME_HOOK),
    "hook_that_sends_nothing_on_one_rank": (SILENT.format(0), "bucket 0 without communication"),
    "hook_that_sends_nothing_for_one_bucket": (SILENT.format(1), "bucket 1 without communication"),
    "half_on_one_rank": ("rank 1 said: Parameter 'norm.bias' on rank 1 is float16 of shape (16,)", BEFORE_WRAPPING),
    "half_on_every_rank": ("'third.bias' on rank 0 is float16 of shape (12,) on cpu now and was float32", "on rank 1"),
    "one_layer_in_double": ("waited for bucket 0, and rank 1 said: Parameter 'first.", "is float64 of shape"),
    "one_layer_in_double_before_the_buckets_are_rebuilt": (
        "rank 1 said: Parameter 'first.",
        "is float64 of shape",
    ),
    "another_shape_after_wrapping": ("rank 1 said: Parameter 'bias'", "is float32 of shape (1,) on cpu now and was"),
    "a_buffer_in_double_on_one_rank": ("rank 1 waits for change 1 of the buffers", "change 1 of the buffers"),
}
WELL = ["hooks_that_send_nothing_on_any_rank", "hooks_that_send_past_torch", "hook_after_a_step_on_every_rank"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disagreements")
    torchrun("reducer_disagreements.py", folder, *CASES, has_dynamo=False)
    return folder


def test_every_case_is_looked_at() -> None:
    assert set(SAYINGS) | set(WELL) == set(CASES)


@pytest.mark.parametrize("case", SAYINGS)
def test_a_disagreement_ends_in_a_sentence_on_both_ranks(case: str, out: Path) -> None:
    for rank, sentence in enumerate(SAYINGS[case]):
        assert_told(outcome(out, case, rank), sentence)


@pytest.mark.parametrize("case", WELL)
def test_hooks_that_are_alike_in_their_own_way_train(case: str, out: Path) -> None:
    assert [outcome(out, case, rank)["kind"] for rank in range(2)] == ["", ""]
