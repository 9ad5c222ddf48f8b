"""Mistakes that make stock DDP hang, or mix gradients in silence: each ends in a sentence, on every rank, in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launch import torchrun
from tests.programs.reducer_misuse import CASES, TIMEOUT_S

SAME_MODEL = "build the same model, in the same order and with the same settings, on every rank"
OTHER_STEP = "Ranks are not in the same step"
ENDED, TOLD = "DdptraceError", "ValueError"  # ours; the program's own, on the rank that raised it
SAYINGS: dict[str, tuple[str, str]] = {
    # what the ranks that do right are told, and what the last rank is told: "" where it ends before it meets the others
    "another_shape": ("'first.weight' of float32, shape (20, 16)", SAME_MODEL),
    "another_shape_in_a_pair": ("'first.weight' of float32, shape (20, 16)", SAME_MODEL),
    "another_order": ("has 'b.weight'", SAME_MODEL),
    "another_dtype": ("'first.weight' of float64", SAME_MODEL),
    "more_parameters": ("rank 0 has nothing", SAME_MODEL),
    "other_settings": (
        "find_unused_parameters=True where rank 0 has the setting find_unused_parameters=False",
        SAME_MODEL,
    ),
    "groups_in_another_order": ("has the setting process groups=", SAME_MODEL),
    "models_in_another_order": ("Ranks run different models in this step", "Ranks run different models in this step"),
    "models_over_groups_in_turn_in_another_order": (
        "waited 3 s for the ranks' comparison of their steps",
        "waited 3 s for the ranks' comparison of their steps",
    ),
    "extra_forward_where_hooks_join_pairs": (OTHER_STEP, OTHER_STEP),
    "nothing_to_train": ("no parameter that requires a gradient", "do not wrap it"),
    "never_made": ("did not come to the construction of the model", ""),
    "forward_without_backward": (f"{OTHER_STEP}: one is in forward 3, another in forward 4", OTHER_STEP),
    "a_parameter_unused": ("no gradient came for 'third.weight', 'third.bias'", "find_unused_parameters=True"),
    "a_parameter_unused_on_one_rank": ("waited for bucket 0, and rank", "no gradient came for 'third.weight'"),
    "two_backwards": ("got a second gradient in one synchronised backward", "call backward once"),
    "forward_raises_and_the_rank_stops": ("said: its forward raised ValueError: no such token", "no such token"),
    "forward_raises_and_the_rank_goes_on": (f"{OTHER_STEP}: one is in forward 2, another in forward 3", OTHER_STEP),
    "loss_raises_and_the_rank_goes_on": (OTHER_STEP, OTHER_STEP),
    "a_rank_leaves_its_loop": ("gave up: another rank did not come to it", ""),
    "hook_without_future": ("returned None for bucket 0 instead of a torch.futures.Future", "`work.get_future()`"),
    "hook_with_half_a_tensor": ("must hold one tensor of the bucket's 204 elements", "a tensor of 102 elements"),
    "hook_that_is_never_done": ("the hook's future for bucket 0", "the hook's future for bucket 0"),
    "hook_that_raises": ("said: ValueError: no room", "no room"),
    "two_hooks": ("there can be only one", "there can be only one"),
    "unfrozen_on_one_rank": ("", "change 1 of what is frozen"),
    "dropped_on_one_rank": ("Ranks do not drop the same layers", "Ranks do not drop the same layers"),
    "dropped_but_used": ("'third.", "in a step that was to drop it"),
    "sparse_embedding": ("sparse=True", "use sparse=False"),
    "graph_of_gradients": ("create_graph=True", "which no flat bucket holds"),
    "zero_cap": ("[1, 0]", "MiB above zero"),
    "backward_raises_and_the_rank_goes_on": ("said: Rank 1 began a forward while", "the last backward is unfinished"),
    "fewer_batches_on_one_rank": ("gave up: another rank did not come to it", ""),
    "wrapped_twice": ("The module is wrapped already, at '1'", "wrap it once"),
    "two_wrappers_of_one_module": ("among them 'first.weight', 'first.bias'", "Wrap both modules together"),
    "recomputed_behind_the_back_of_the_search": ("pass use_reentrant=False", "use_reentrant=False"),
    "copied_with_a_group_of_its_own": ("cannot be copied or pickled", "copy or save its `.module`"),
    "a_rank_ends": (
        "the connection to another rank broke: it may have ended, see its output. The backend: [",
        "",
    ),
}
WELL = ["a_second_model_that_one_rank_cannot_make"]
AT_FOUR = [
    "another_shape",
    "forward_without_backward",
    "extra_forward_where_hooks_join_pairs",
    "forward_raises_and_the_rank_stops",
    "never_made",
]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two")
    torchrun("reducer_misuse.py", out, *CASES, ranks=2)
    return out


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("four")
    torchrun("reducer_misuse.py", out, "another_shape_in_a_pair", *AT_FOUR, ranks=4)
    return out


def test_every_mistake_has_its_sentences() -> None:
    assert {*SAYINGS, *WELL} == set(CASES)


@pytest.mark.parametrize("case", WELL)
def test_what_is_well_in_its_own_way_trains(case: str, two_ranks: Path) -> None:
    assert [outcome(two_ranks, case, rank)["said"] for rank in range(2)] == ["", ""]


@pytest.mark.parametrize("case", SAYINGS)
def test_a_mistake_ends_in_a_sentence_on_both_ranks(case: str, two_ranks: Path) -> None:
    check(two_ranks, case, 2)


@pytest.mark.parametrize("case", AT_FOUR)
def test_a_mistake_of_one_rank_ends_in_a_sentence_on_all_four(case: str, four_ranks: Path) -> None:
    check(four_ranks, case, 4)


def test_ranks_of_a_group_are_named_by_their_numbers_among_all(four_ranks: Path) -> None:
    told = [outcome(four_ranks, "another_shape_in_a_pair", rank)["said"] for rank in range(4)]
    assert told[:2] == ["", ""] and told[2] == told[3]
    assert told[2].startswith("Rank 3 has ") and "where rank 2 has" in told[2]


def check(folder: Path, case: str, ranks: int) -> None:
    others, last = SAYINGS[case]
    for rank in range(ranks - 1):
        assert_told(outcome(folder, case, rank), others or "waited")
    if last:
        assert_told(outcome(folder, case, ranks - 1), last)


def outcome(folder: Path, case: str, rank: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / f"{case}-{rank}.json").read_text())
    return told


def assert_told(told: dict[str, Any], sentence: str) -> None:
    assert sentence in told["said"]
    assert told["kind"] == (TOLD if told["said"] in ("no such token", "no room") else ENDED)
    assert told["seconds"] < TIMEOUT_S + 10, "that is no longer the timeout that was asked for"
