"""FSDP2 units on real ranks: who they are, which collectives are theirs, and that all adds up."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.analysis.rank_view import view_of
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import WORTH_RATIO, summarize
from ddptrace.analysis.tables.parallelism import UnitRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.timeline.advice import RunAdvice
from ddptrace.analysis.units.advice import calls_of
from ddptrace.analysis.units.forecast import UnitPredictor
from ddptrace.analysis.units.plan import Do, Plan, ways_of
from ddptrace.analysis.units.script import StepScript, script_of
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.errors import DdptraceError
from ddptrace.load.run import read_run
from ddptrace.load.tables import RankRun
from ddptrace.render.headline import headline
from ddptrace.render.whatif.answers import run_advice_text
from ddptrace.telemetry.delivery.exports import totals_of
from tests.programs.fsdp_units import BLOCKS, STEPS, WAYS
from tests.sums import summed, sums_of, told_by

ON_TWO = ("plain", "ahead-1", "ahead-2", "mixed", "kept", "large", "whole")
ON_FOUR = ("hsdp",)
STEP = 1
BLOCK_NAMES = [f"blocks.{at}" for at in range(BLOCKS)]


class Trained:
    def __init__(self, runs: Path, kind: str) -> None:
        self.kind = kind
        self.path = runs / kind
        self.told: dict[str, Any] = json.loads((runs / f"{kind}.json").read_text())

    @cached_property
    def ranks(self) -> tuple[RankRun, ...]:
        return read_run(self.path).ranks

    @cached_property
    def result(self) -> Result:
        return ddptrace.analyze(self.path, align=False)

    def rows(self, role: str, phase: str) -> dict[str, UnitRow]:
        """Of one step of rank 0, by unit."""
        found = [
            row for row in self.result.units if (row.rank, row.step, row.role, row.phase) == (0, STEP, role, phase)
        ]
        assert len(found) == len({row.name for row in found})
        return {row.name: row for row in found}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    from tests.launch import torchrun

    path = tmp_path_factory.mktemp("fsdp")
    torchrun("fsdp_units.py", path, *ON_TWO, "foreign")
    torchrun("fsdp_units.py", path, *ON_FOUR, ranks=4)
    return {kind: Trained(path, kind) for kind in (*ON_TWO, *ON_FOUR)}


@pytest.fixture(params=(*ON_TWO, *ON_FOUR))
def run(runs: dict[str, Trained], request: pytest.FixtureRequest) -> Trained:
    return runs[request.param]


def test_tracing_changes_no_bit_and_leaves_the_class_as_it_was(run: Trained) -> None:
    assert run.told["same_bits"]
    assert run.told["as_before"]


def test_units_are_complete_and_have_the_bytes_of_their_parameters(run: Trained) -> None:
    whole = {name: 4 * prod(shape) for name, shape in run.told["parameters"].items()}
    for rank in run.ranks:
        assert {p.name: p.nbytes for unit in rank.units for p in unit.parameters} == whole
        assert {unit.module for unit in rank.units} == {"Stack", *(BLOCK_NAMES if run.kind != "whole" else ())}
        assert [unit.module for unit in rank.units if unit.is_root] == ["Stack"]
        for unit in rank.units:
            assert unit.kind == "fsdp"
            assert unit.reshards == (not unit.is_root and run.kind != "kept")
            mesh = ["dp_shard", *(["dp_replicate"] if run.kind == "hsdp" else [])]
            assert [group.dimension for group in unit.groups] == mesh
    for name, nbytes in whole.items():  # each shard is on as many ranks as there are replicas
        shards = sum(
            p.sharded_nbytes for rank in run.ranks for unit in rank.units for p in unit.parameters if p.name == name
        )
        assert shards == nbytes * (2 if run.kind == "hsdp" else 1)


def test_each_collective_is_in_one_unit_or_in_other_with_a_reason(run: Trained) -> None:
    calls = Counter((row.rank, row.seq) for row in run.result.collectives if row.part == 0)
    assert Counter((row.rank, seq) for row in run.result.units for seq in row.seqs) == calls
    for row in run.result.units:
        assert (row.kind == "other") == (row.reason is not None)
    others = [row for row in run.result.units if row.kind == "other" and row.step is not None]
    assert not others
    kinds = {row.kind for row in run.result.units if row.rank == 0}
    assert kinds == {"fsdp", "other"}  # the reduction of the losses is the program's


def test_each_unit_is_gathered_when_it_is_used_and_its_gradients_are_reduced_once(run: Trained) -> None:
    names = {unit.module for unit in run.ranks[0].units}
    assert run.rows("unshard", "forward").keys() == names
    again = {unit.module for unit in run.ranks[0].units if unit.reshards}
    assert run.rows("unshard", "backward").keys() == again
    assert run.rows("reduce-scatter", "backward").keys() == names
    assert run.rows("all-reduce", "backward").keys() == (names if run.kind == "hsdp" else set())


def test_gathers_and_reductions_move_the_bytes_of_the_unit(run: Trained) -> None:
    part = 2 if run.kind == "mixed" else 1
    for row in run.result.units:
        if row.kind == "fsdp" and row.role in ("unshard", "reduce-scatter"):
            assert row.nbytes == row.whole_nbytes // part  # all shapes here divide evenly
        if row.role == "all-reduce" and row.kind == "fsdp":
            assert row.nbytes == row.sharded_nbytes


def test_the_life_of_a_unit_is_in_order(run: Trained) -> None:
    for row in run.result.units:
        if row.kind != "fsdp":
            continue
        if row.role == "unshard":
            assert row.needed_at_ns is not None and row.prefetch_distance is not None
            assert (row.needed_at_ns <= row.launch_at_ns) == (row.prefetch_distance == 0)
            assert row.freed_at_ns is not None and row.freed_at_ns > max(row.needed_at_ns, row.launch_at_ns)
        else:
            assert row.ready_at_ns is not None and row.ready_at_ns <= row.launch_at_ns


@pytest.mark.parametrize(("kind", "forward"), [("plain", [0, 0, 0]), ("ahead-1", [0, 1, 1]), ("ahead-2", [0, 1, 2])])
def test_units_are_gathered_as_far_ahead_as_the_program_asked(
    runs: dict[str, Trained], kind: str, forward: list[int]
) -> None:
    rows = runs[kind].rows("unshard", "forward")
    assert [rows[name].prefetch_distance for name in BLOCK_NAMES] == forward
    assert rows["Stack"].prefetch_distance == 0
    assert all(row.blocks == (kind == "plain") for row in rows.values())
    backward = runs[kind].rows("unshard", "backward")
    ahead = {"plain": [1, 1, 1], "ahead-1": [1, 1, 1], "ahead-2": [2, 1, 1]}[kind]  # torch by itself gathers one ahead
    assert [backward[name].prefetch_distance for name in BLOCK_NAMES] == ahead


def test_the_dimensions_of_each_step_add_up_to_its_exposed_time(run: Trained) -> None:
    sums: defaultdict[tuple[int, int], int] = defaultdict(int)
    calls: Counter[tuple[int, int]] = Counter()
    for row in run.result.dimensions:
        sums[row.rank, row.step] += row.exposed_charged_ns or 0
        calls[row.rank, row.step] += row.calls
        parts = [row.peer_wait_ns, row.bubble_ns, row.transfer_ns, row.unmatched_ns]
        assert None not in parts and min(part or 0 for part in parts) >= 0
        assert row.exposed_charged_ns == sum(part or 0 for part in parts)
        assert row.unmatched_ns == 0  # the launches tell it of reductions, of which only the waits are known
    for step in run.result.steps:
        of_step = step.rank, step.step
        assert sums[of_step] == step.exposed_comm_ns
        assert step.window_ns == step.compute_ns + sums[of_step] + step.exposed_memory_ns + step.idle_ns
    places = {(row.dimension, row.mesh) for row in run.result.dimensions}
    replicas = {("dp", "dp_replicate")} if run.kind == "hsdp" else set()
    assert places == {("fsdp", "dp_shard"), *replicas}


def test_metrics_are_sums_over_the_units(run: Trained) -> None:
    told = told_by(totals_of(run.result, run.path))
    assert summed(told) == sums_of(run.result)
    assert {key[2] for key in told if key[0] == "ddptrace.unit.io"} == {unit.module for unit in run.ranks[0].units}


def test_a_collective_has_the_unit_that_the_table_of_units_has(run: Trained) -> None:
    units = {(row.rank, seq): row for row in run.result.units for seq in row.seqs}
    for row in run.result.collectives:
        unit = units[row.rank, row.seq]
        assert row.dimension == unit.dimension
        assert (row.unit, row.unit_role) == ((None, None) if unit.kind == "other" else (unit.name, unit.role))


def test_a_collective_has_the_line_that_called_the_model_in_its_own_step(run: Trained) -> None:
    units = {(row.rank, seq): row for row in run.result.units for seq in row.seqs}
    told = defaultdict(set)
    for row in run.result.collectives:
        unit = units[row.rank, row.seq]
        if (unit.name, unit.role, unit.phase) == ("Stack", "unshard", "forward"):
            told[row.step].add((row.site or "").rpartition(" in ")[2])
    assert told == {step: {WAYS[step % 2].__name__} for step in range(STEPS)}


def test_what_comes_again_from_the_same_line_is_recorded_in_the_short_way(run: Trained) -> None:
    """All of later steps, except what the line that calls the model issues: there are two of them."""
    turning = tuple(way.__name__ for way in WAYS)
    of_units = [row for row in run.result.collectives if row.rank == 0 and row.unit is not None and row.step != 0]
    again = [row for row in of_units if not (row.site or "").endswith(turning)]
    assert run.told["short"] == len(again) > 0


def test_no_record_of_a_unit_is_missing(run: Trained) -> None:
    for rank in run.ranks:
        uses = Counter((event.unit, event.phase) for event in rank.unit_events if event.mark.name == "USE")
        assert set(uses.values()) == {STEPS}
        assert len(uses) == 2 * len(rank.units)


def test_completions_of_gathers_are_stamped(runs: dict[str, Trained]) -> None:
    """Gloo's reduce-scatter has no future: only its wait is known."""
    by_role: defaultdict[str, set[Any]] = defaultdict(set)
    for row in runs["plain"].result.units:
        if row.kind == "fsdp":
            by_role[row.role].add(row.evidence)
    assert by_role == {"unshard": {"callback"}, "reduce-scatter": {"host"}}


# Files of torch.profiler alone ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def foreign(runs: dict[str, Trained]) -> Result:
    return ddptrace.analyze(runs["plain"].path.parent / "foreign")


def test_a_file_of_torchs_profiler_tells_the_same_units_as_our_records(
    runs: dict[str, Trained], foreign: Result
) -> None:
    ours, theirs = (
        Counter(
            (row.rank, row.name.replace("(root)", "Stack"), row.role, row.phase, row.dimension, row.prefetch_distance)
            for row in result.units
            if row.kind == "fsdp"
        )
        for result in (runs["plain"].result, foreign)
    )
    assert theirs == ours
    assert {row.reshards for row in foreign.units if row.kind == "fsdp" and row.is_root} == {False}


def test_the_dimensions_of_a_foreign_step_add_up(foreign: Result) -> None:
    sums: Counter[tuple[int, int]] = Counter()
    for row in foreign.dimensions:
        sums[row.rank, row.step] += row.exposed_charged_ns or 0
    assert foreign.steps
    for step in foreign.steps:
        assert sums[step.rank, step.step] == step.exposed_comm_ns


def test_advice_tells_what_analyze_tells_and_what_the_units_take(runs: dict[str, Trained]) -> None:
    run = runs["plain"]
    advice = ddptrace.advise(run.path)
    assert isinstance(advice, RunAdvice)
    summary = summarize(run.result)
    assert summary.typical is not None and advice.recorded_ns == summary.typical.window_ns
    worth = [row for row in run.result.savings if row.cost_ratio >= WORTH_RATIO]
    assert [limit.saving.cause for limit in advice.limits] == [row.cause for row in worth]
    assert advice.refusal is None and advice.recorded is not None and advice.recorded.peak_nbytes
    said = run_advice_text(advice, run.result)
    assert " ".join(headline(run.result, summary).text.split()) in " ".join(said.split())


# Other settings -------------------------------------------------------------------------------------------------------


AHEAD_1 = Setting(forward_prefetch=1, backward_prefetch=1, unshard_async_op=True)
AHEAD_2 = Setting(forward_prefetch=2, backward_prefetch=2, unshard_async_op=True)
KEPT = Setting(reshard_after_forward=False)


def planned(run: Trained, setting: Setting) -> Plan:
    script = script_of(view_of(run.ranks[0]))
    assert script is not None and script.refusal is None
    return Plan(script, ways_of(script, setting))


def sends(plan: Plan, script: StepScript) -> list[tuple[str, int]]:
    return [(op.role.word, op.amount) for op in plan.ops(script) if op.do is Do.LAUNCH]


@pytest.mark.parametrize(
    ("known", "setting", "asked"),
    [
        ("plain", Setting(), "plain"),
        ("plain", AHEAD_1, "ahead-1"),
        ("plain", AHEAD_2, "ahead-2"),
        ("ahead-2", AHEAD_1, "ahead-1"),
        ("plain", KEPT, "kept"),
        ("kept", Setting(reshard_after_forward=True), "plain"),
        ("mixed", Setting(), "mixed"),
        ("whole", Setting(), "whole"),
    ],
)
def test_a_plan_launches_what_a_run_with_that_setting_launched(
    runs: dict[str, Trained], known: str, setting: Setting, asked: str
) -> None:
    rows = [row for row in runs[asked].result.units if (row.rank, row.step, row.kind) == (0, STEP, "fsdp")]
    script = script_of(view_of(runs[known].ranks[0]))
    assert script is not None
    found = sends(Plan(script, ways_of(script, setting)), script.steps[0])
    assert found == [(row.role, row.nbytes) for row in sorted(rows, key=lambda row: row.seq)]


def test_work_of_the_host_is_the_same_in_every_plan_but_for_copies(runs: dict[str, Trained]) -> None:
    script = script_of(view_of(runs["plain"].ranks[0]))
    assert script is not None
    step = script.steps[0]
    for size in (1.0, 0.5, 2.0, 3.0):
        plan = Plan(script, ways_of(script, Setting(unit_size=size)))
        work = sum(op.amount for op in plan.ops(step) if op.do is Do.WORK)
        copies = sum(sum(one.values()) for one in (step.in_ns, step.out_ns, step.reduce_in_ns, step.reduce_out_ns))
        assert sum(step.before_ns) < work <= sum(step.before_ns) + copies
        assert sum(op.amount for op in plan.ops(step) if op.do is Do.HOLD) == 0  # all is let go


def test_larger_units_send_the_same_bytes_at_fewer_times(runs: dict[str, Trained]) -> None:
    run = runs["plain"]
    script = script_of(view_of(run.ranks[0]))
    assert script is not None
    recorded, merged, halved = (
        sends(planned(run, Setting(unit_size=size)), script.steps[0]) for size in (1.0, 3.0, 0.5)
    )
    assert sum(nbytes for _, nbytes in recorded) == sum(nbytes for _, nbytes in merged)
    assert (len(recorded), len(merged), len(halved)) == (1 + 3 * BLOCKS + 1, 1 + 3 + 1, 1 + 6 * BLOCKS + 1)
    assert planned(run, Setting(unit_size=3.0)).peak_nbytes() > planned(run, Setting()).peak_nbytes()
    assert planned(run, Setting(unit_size=0.5)).peak_nbytes() < planned(run, Setting()).peak_nbytes()


def test_units_that_are_reduced_otherwise_than_once_for_each_use_are_refused(runs: dict[str, Trained]) -> None:
    run = runs["plain"]
    scripts = [script for rank in run.ranks if (script := script_of(view_of(rank))) is not None]
    reduced = [row for row in run.result.units if row.role == "reduce-scatter"]
    fewer = [row for row in run.result.units if row is not reduced[BLOCKS + 1]]  # of step 1
    UnitPredictor(run.result, scripts)
    with pytest.raises(DdptraceError, match="once for each use"):
        UnitPredictor(replace(run.result, units=Table(UnitRow, fewer)), scripts)


def test_replicas_and_other_models_are_refused(runs: dict[str, Trained]) -> None:
    script = script_of(view_of(runs["hsdp"].ranks[0]))
    assert script is not None and script.refusal is not None and "replicas" in script.refusal
    found = ddptrace.whatif(runs["plain"].path, {"caps": Setting(caps=(1.0,)), "kept": KEPT})
    assert [one.refusal is None for one in found.predictions] == [False, True]
    assert found.model == "units" and found.predictions[1].peak_nbytes
    (only,) = ddptrace.whatif(runs["whole"].path, {"halves": Setting(unit_size=0.5)}).predictions
    assert only.refusal == "the root is the only unit"


def test_the_advice_can_be_pasted(runs: dict[str, Trained]) -> None:
    units = runs["plain"].ranks[0].units
    calls = "\n".join(calls_of(AHEAD_2, units))
    compile(calls, "advice", "exec")
    assert 'model.get_submodule, ["blocks.0", "blocks.1", "blocks.2"]' in calls and "units[at + 1 : at + 3]" in calls
