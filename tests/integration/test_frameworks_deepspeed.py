"""DeepSpeed's trainings, unchanged: ZeRO stages 1 to 3, and a mixture of experts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

import ddptrace
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.load.run import read_run
from tests.integration.test_frameworks import RANKS, left, need_package
from tests.integration.test_origins import line
from tests.launch import torchrun

PROGRAM = "frameworks_deepspeed.py"
CASES = ("zero-1", "zero-2", "zero-3", "moe")
STEPS = 3
REDUCE, GATHER, SCATTER = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"
EMBED, UP, DOWN = (4 * (inputs + 1) * outputs for inputs, outputs in ((16, 16), (16, 32), (32, 16)))  # bytes
ALL = EMBED + UP + DOWN

PURPOSES = ("made", "initialized", "the block", "forward", "backward", "step", "saved", "gathered")
"""Lines of the program end in these."""

Told = tuple[str, int | None, str | None, str]
"""Op, bytes, module, and what the program's line is for."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with what was left without tracing (`off`) and with (`on`), and the runs; and what was printed."""
    need_package("deepspeed")
    folder = tmp_path_factory.mktemp("deepspeed")
    torchrun(PROGRAM, folder / "off")
    return folder, torchrun(PROGRAM, folder / "on", folder / "run")


@pytest.fixture(scope="module")
def rows(trained: tuple[Path, str]) -> dict[str, list[CollectiveRow]]:
    """Of rank 0, each call once."""
    folder, _ = trained
    results = {case: ddptrace.analyze(folder / "run" / case) for case in CASES}
    return {case: [row for row in results[case].collectives if row.rank == 0 and not row.part] for case in CASES}


def told(rows: list[CollectiveRow], origin: str) -> Counter[Told]:
    purposes = {f"{PROGRAM}:{line(purpose, PROGRAM)}": purpose for purpose in PURPOSES}
    return Counter(
        (row.op, row.nbytes, row.module, purposes.get((row.site or "").partition(" ")[0], ""))
        for row in rows
        if row.origin == origin
    )


def functions(rows: list[CollectiveRow], op: str) -> set[str]:
    """Of DeepSpeed, through which its gradients and parameters went."""
    return {(row.through or "").partition(" in ")[2] for row in rows if row.origin == "zero" and row.op == op}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_parameters_are_the_same_bits_with_and_without_tracing(trained: tuple[Path, str], case: str) -> None:
    folder, said = trained
    assert "ddptrace" not in said
    for off, on in zip(left(folder / "off"), left(folder / "on"), strict=True):
        assert len(off[case]["losses"]) == STEPS
        assert off[case]["losses"] == on[case]["losses"]
        assert all(torch.equal(a, b) for a, b in zip(off[case]["parameters"], on[case]["parameters"], strict=True))


@pytest.mark.parametrize("case", CASES)
def test_every_collective_has_an_origin_the_programs_line_and_a_telling_one_of_deepspeeds(
    rows: dict[str, list[CollectiveRow]], case: str
) -> None:
    for row in rows[case]:
        assert row.site is not None and row.site.startswith(f"{PROGRAM}:"), row
        assert row.through is not None and row.through.startswith("deepspeed/"), row
        assert not row.through.startswith(("deepspeed/comm/", "deepspeed/runtime/comm/", "deepspeed/utils/")), row
    origins = {"zero", "construction", "agreement", "checkpoint"}
    assert {row.origin for row in rows[case]} == origins | ({"moe"} if case == "moe" else set())


@pytest.mark.parametrize("case", ["zero-1", "zero-2"])
def test_stages_1_and_2_reduce_gradients_in_buckets_and_gather_what_was_updated(
    rows: dict[str, list[CollectiveRow]], case: str
) -> None:
    found = told(rows[case], "zero")
    assert found.pop((GATHER, ALL, None, "step")) == STEPS
    assert {(op, module, purpose) for op, _, module, purpose in found} == {(REDUCE, None, "backward")}
    assert sum(nbytes * times for (_, nbytes, *_), times in found.items() if nbytes) == ALL * STEPS
    assert told(rows[case], "agreement") == {(REDUCE, 4, None, "step"): STEPS}  # the norm of the gradients
    assert functions(rows[case], GATHER) == {"DeepSpeedZeroOptimizer.step"}


def test_stage_3_gathers_the_parameters_of_modules_and_scatters_gradients(rows: dict[str, list[CollectiveRow]]) -> None:
    found = told(rows["zero-3"], "zero")
    scattered = {one: found.pop(one) for one in list(found) if one[0] == SCATTER}
    assert {(module, purpose) for _, _, module, purpose in scattered} == {(None, "backward")}
    assert sum(nbytes * times for (_, nbytes, *_), times in scattered.items() if nbytes) == ALL * STEPS
    by_modules = {(nbytes, module): (op, purpose) for op, nbytes, module, purpose in found if purpose != "gathered"}
    # in the first step each when it is needed; then DeepSpeed knows the order and gathers for several in one go
    for nbytes, module in ((EMBED, "embed"), (UP, "block.up"), (DOWN, "block.down")):
        assert by_modules[nbytes, module][0] == GATHER
    assert any("," in (module or "") for _, module in by_modules)
    assert {module for _, module in by_modules if module is None} == set()
    in_training = [row for row in rows["zero-3"] if row.step is not None and row.step < STEPS]
    assert functions(in_training, GATHER) == {"PartitionedParameterCoordinator._fetch_sub_module_impl"}
    gathered = {module for op, _, module, purpose in found if purpose == "gathered"}
    assert gathered == {"embed, block.up, block.down"}


def test_what_stage_3_sends_to_be_made_and_to_be_saved_is_told_apart(rows: dict[str, list[CollectiveRow]]) -> None:
    made = Counter((op, purpose) for op, _, _, purpose in told(rows["zero-3"], "construction").elements())
    assert made["broadcast", ""] == 6  # each parameter as its module is made, in the program's `__init__`
    assert made["barrier", "initialized"] and made[GATHER, "initialized"] == 6
    assert set(made) == {("broadcast", ""), ("barrier", "initialized"), (GATHER, "initialized")}
    saved = told(rows["zero-3"], "checkpoint")
    assert {purpose for *_, purpose in saved} == {"saved"}
    assert {op for op, *_ in saved} >= {GATHER}


def test_tokens_go_to_the_experts_and_back_in_forward_and_in_backward(rows: dict[str, list[CollectiveRow]]) -> None:
    found = told(rows["moe"], "moe")
    forward = [(one, times) for one, times in found.items() if one[3] == "the block"]
    assert [(op, module, times) for (op, _, module, _), times in forward] == [
        ("all_to_all_single", "block.deepspeed_moe", 2 * STEPS)
    ]
    backward = Counter({one: times for one, times in found.items() if one[3] == "backward"})
    assert {op for op, *_ in backward} == {"all_to_all_single"} and backward.total() == 2 * STEPS
    # spans of forwards are kept from the first such collective on
    assert {module: times for (_, _, module, _), times in backward.items()} == {
        None: 2, "block.deepspeed_moe": 2 * (STEPS - 1)
    }  # fmt: skip
    reducing = {"DeepSpeedEngine._reduce_non_expert_gradients", "DeepSpeedEngine._reduce_expert_gradients"}
    assert functions(rows["moe"], REDUCE) == reducing


@pytest.mark.parametrize("case", CASES)
def test_ranks_tell_the_same_of_every_call_and_each_update_is_a_step(trained: tuple[Path, str], case: str) -> None:
    run = read_run(trained[0] / "run" / case)
    one, other = (
        [(call.op, call.origin, call.site, call.through, call.module) for call in rank.calls] for rank in run.ranks
    )
    assert one == other
    assert [len(rank.steps) for rank in run.ranks] == [STEPS] * RANKS
