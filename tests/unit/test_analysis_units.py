"""Units on hand-made records: which collective is whose, what hides it, and what advice is worth."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

import pytest

from ddptrace.analysis.analyze import analyze_rank, analyze_run
from ddptrace.analysis.diff.compare import compare
from ddptrace.analysis.diff.one_run import figures_of
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.parallelism import DimensionRow, UnitRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.traffic.digest import traffic_report
from ddptrace.analysis.units.costs import FsdpCosts, bytes_by_child
from ddptrace.analysis.units.digest import units
from ddptrace.analysis.units.members import meaning
from ddptrace.load.tables import Group, Unit, UnitKind, UnitParameter
from ddptrace.render.diff.terminal import diff_text
from ddptrace.render.report import page
from ddptrace.render.terminal import summary_text
from ddptrace.render.watch.parts import unit_lines
from ddptrace.render.watch.view import last_steps
from ddptrace.schema import Phase
from tests.unit.analysis_records import call, ddp_call, layout, mark, rank, reducer, run, step, window
from tests.unit.made_units import MS, Plan, units_run

FSDP = ("fsdp-prefetch", "fsdp-unit-size", "fsdp-reshard", "fsdp-reduction", "fsdp-communicator", "fsdp-accumulation")


def analyzed(plan: Plan) -> Result:
    return analyze_run(units_run(plan))


def advice(plan: Plan) -> dict[str, str]:
    return {finding.code: finding.message for finding in analyzed(plan).findings if finding.code in FSDP}


def of_step(result: Result, role: str, phase: str, step: int = 1) -> list[UnitRow]:
    """Of rank 0, in launch order."""
    wanted = (0, step, role, phase)
    return [row for row in result.units if (row.rank, row.step, row.role, row.phase) == wanted]


@pytest.mark.parametrize(("ahead", "expected"), [(0, [0, 0, 0, 0]), (1, [0, 1, 1, 1]), (2, [0, 1, 2, 2])])
def test_prefetch_distance_counts_the_units_between_launch_and_use(ahead: int, expected: list[int]) -> None:
    rows = of_step(analyzed(Plan(ahead=ahead)), "unshard", "forward")
    assert [row.prefetch_distance for row in rows] == expected


def test_a_gather_on_demand_is_exposed_and_computation_before_it_would_have_hidden_it() -> None:
    rows = of_step(analyzed(Plan()), "unshard", "forward")
    assert [row.exposed_charged_ns for row in rows] == [2 * MS] * 4
    assert [row.hideable_ns for row in rows] == [None, 2 * MS, 2 * MS, 2 * MS]  # the first has no unit before it
    assert [row.edge for row in rows] == ["first", None, None, None]


def test_a_gather_ahead_is_hidden() -> None:
    rows = of_step(analyzed(Plan(ahead=1)), "unshard", "forward")
    assert [row.exposed_charged_ns for row in rows] == [2 * MS, 0, 0, 0]


def test_no_more_is_hideable_than_is_computed_before() -> None:
    rows = of_step(analyzed(Plan(nbytes=(6, 6), compute_ms=1)), "unshard", "forward")
    assert [row.hideable_ns for row in rows] == [None, MS]


def test_a_reduction_waits_behind_gathers_of_its_communicator() -> None:
    plan = Plan(nbytes=(2, 2, 12, 2), ahead_backward=1, compute_ms=4)
    rows = {row.name: row for row in of_step(analyzed(plan), "reduce-scatter", "backward")}
    assert rows["blocks.3"].behind_ns == rows["blocks.3"].queue_ns == 4 * MS  # the gather of blocks.2 takes 12 ms of 8
    assert rows["blocks.1"].behind_ns == rows["blocks.1"].queue_ns


def test_the_last_reduction_and_the_first_gather_stand_by_themselves() -> None:
    edges = units(analyzed(Plan(ahead=1))).edges
    assert edges is not None
    assert (edges.first_ns, edges.last_ns, edges.root_ns) == (2 * MS, 2 * MS, 0)


# Advice ---------------------------------------------------------------------------------------------------------------


def test_switched_off_prefetch_is_named_with_what_it_costs() -> None:
    message = advice(Plan())["fsdp-prefetch"]
    assert "set_modules_to_forward_prefetch" in message
    assert "waits 6.00 ms" in message and "hide up to 6.00 ms" in message
    assert "fsdp-prefetch" not in advice(Plan(ahead=1))


def test_where_the_host_waits_at_once_no_prefetch_is_said_to_help_alone() -> None:
    message = advice(Plan(blocks=True))["fsdp-prefetch"]
    assert "_set_unshard_async_op(True)" in message and "no prefetch hides it" in message


def test_a_unit_far_too_large_is_named_with_its_bytes() -> None:
    message = advice(Plan(nbytes=(2, 2, 20, 2), ahead=1))["fsdp-unit-size"]
    assert message.startswith("FSDP unit blocks.2 with 2.00 MB has 10 times the bytes of the others")
    assert "Call fully_shard on blocks.2.up as well" in message
    assert "fsdp-unit-size" not in advice(Plan(ahead=1))
    assert "fsdp-unit-size" not in advice(Plan(nbytes=(2, 2, 7, 2)))


def test_the_only_unit_is_told_to_be_divided() -> None:
    assert "blocks.0 with 800 kB is the only one" in advice(Plan(nbytes=(8,)))["fsdp-unit-size"]


def test_parameters_that_are_gathered_again_cost_time_and_would_cost_memory() -> None:
    again = Plan(ahead=1, ahead_backward=0)
    message = advice(again)["fsdp-reshard"]
    assert "reshard_after_forward=False" in message
    assert "waits 8.00 ms" in message and "for 800 kB more memory" in message  # 200 kB of four units
    assert "fsdp-reshard" not in advice(Plan(ahead=1, reshards=False))


def test_reductions_in_float32_are_told_to_send_half() -> None:
    message = advice(Plan(nbytes=(100, 100), compute_ms=90))["fsdp-reduction"]
    assert "waits 100 ms until gradients of 1 FSDP unit are reduced in float32" in message
    assert "saves up to 50.0 ms" in message
    assert "fsdp-reduction" not in advice(Plan(ahead=1, compute_ms=40))


def test_reductions_in_each_of_several_backwards_are_told_to_be_done_once() -> None:
    message = advice(Plan(nbytes=(8, 8), compute_ms=4, ahead=1, micro_steps=3))["fsdp-accumulation"]
    assert "over 3 backwards of an update, and FSDP reduces those of 2 units in each" in message
    # of each of the two early backwards, the reduction of the second unit waits for nothing else: 8 ms
    waits, tails = re.findall(r"waits ([\d.]+) ms", message), re.findall(r"saves up to ([\d.]+) ms\.", message)
    assert float(waits[0]) >= float(tails[0]) == 16
    assert "up to 800 kB more memory" in message and "set_is_last_backward(False)" in message


@pytest.mark.parametrize("plan", [Plan(nbytes=(8, 8)), Plan(nbytes=(8, 8), micro_steps=3, reduces=False)])
def test_one_reduction_in_an_update_is_no_accumulation(plan: Plan) -> None:
    assert "fsdp-accumulation" not in advice(plan)


def test_a_unit_that_is_reduced_twice_in_one_backward_accumulates_nothing() -> None:
    result, facts = known(Plan(nbytes=(8, 8)))
    twice = [again for row in result.units for again in ([row, row] if row.role == "reduce-scatter" else [row])]
    assert FsdpCosts(replace(result, units=Table(UnitRow, twice)), facts).early() is None


def test_units_of_one_name_stay_apart() -> None:
    made = units_run(Plan(nbytes=(2, 2)))
    alike = [replace(one, units=tuple(replace(unit, module="Stack") for unit in one.units)) for one in made.ranks]
    found = units(analyze_run(replace(made, ranks=tuple(alike))))
    assert {unit.name for unit in found.units} == {"Stack", "Stack #2"}
    assert all(unit.calls == 1 for unit in found.units)


def known(plan: Plan) -> tuple[Result, list[RankFacts]]:
    return analyzed(plan), [analyze_rank(rank).facts for rank in units_run(plan).ranks]


def test_a_large_unit_that_takes_no_longer_than_the_others_is_not_divided() -> None:
    result, facts = known(Plan(nbytes=(2, 2, 20, 2), ahead=1))
    assert FsdpCosts(result, facts).large() is not None
    alike = [replace(row, comm_ns=2 * MS) for row in result.units]
    assert FsdpCosts(replace(result, units=Table(UnitRow, alike)), facts).large() is None


def test_a_queued_gather_costs_no_more_than_is_exposed_of_it() -> None:
    result, facts = known(Plan(nbytes=(2, 2, 12, 2), steps=2))
    queued = [replace(row, exposed_charged_ns=MS, behind_ns=5 * MS, phase="backward") for row in result.units]
    found = FsdpCosts(replace(result, units=Table(UnitRow, queued)), facts).queued()
    gathers = [row for row in result.units if row.role == "unshard" and (row.rank, row.step) == (0, 1)]
    assert found is not None and found.saved_ns == MS * len(gathers)


def test_what_is_waiting_for_late_ranks_is_not_won_back() -> None:
    result, facts = known(Plan(nbytes=(100, 100), compute_ms=90, ahead_backward=0))
    waits = [
        replace(row, peer_wait_ns=ns // 4, transfer_ns=ns - ns // 4)
        for row in result.dimensions
        if (ns := row.exposed_charged_ns or 0)
    ]
    late_result = replace(result, dimensions=Table(DimensionRow, waits))
    alone = Table(UnitRow, [replace(row, behind_ns=0) for row in result.units])
    late, on_time = (FsdpCosts(replace(one, units=alone), facts) for one in (late_result, result))
    kept, wide = late.kept(), late.wide()
    assert kept is not None and kept.saved_ns == 3 * kept.exposed_ns // 4
    assert wide is not None and wide.saved_ns == 3 * wide.exposed_ns // 8
    earlier, all_earlier = late.earlier(Phase.BACKWARD), on_time.earlier(Phase.BACKWARD)
    assert earlier is not None and all_earlier is not None
    assert earlier.saved_ns == 3 * all_earlier.saved_ns // 4 > 0
    queued = [replace(row, queue_ns=10, behind_ns=9, comm_ns=101 * MS) for row in result.units]
    all_queued = FsdpCosts(replace(late_result, units=Table(UnitRow, queued)), facts).kept()
    assert all_queued is not None and all_queued.exposed_ns < all_queued.saved_ns == 2 * 101 * MS
    half = [replace(row, queue_ns=10, behind_ns=9 if row.rank else 0) for row in result.units]
    assert FsdpCosts(replace(late_result, units=Table(UnitRow, half)), facts).kept() == kept


def test_half_the_bytes_win_half_the_transfer_of_a_reduction_that_is_partly_hidden() -> None:
    result, facts = known(Plan(nbytes=(100, 100), compute_ms=90))
    rows = [replace(row, comm_ns=10 * MS, exposed_charged_ns=6 * MS) for row in result.units]
    wide = FsdpCosts(replace(result, units=Table(UnitRow, rows)), facts).wide()
    assert wide is not None and (wide.exposed_ns, wide.saved_ns) == (12 * MS, 10 * MS)


def test_a_second_group_wins_no_more_than_the_time_in_which_nothing_is_sent() -> None:
    result, facts = known(Plan(nbytes=(2, 2, 12, 2), steps=2))
    rows = [replace(row, exposed_charged_ns=MS, behind_ns=5 * MS, phase="backward") for row in result.units]
    busy = [replace(row, comm_ns=row.window_ns - MS) for row in result.steps]
    found = FsdpCosts(replace(result, units=Table(UnitRow, rows), steps=Table(StepRow, busy)), facts).queued()
    assert found is not None and found.saved_ns == MS


def test_gathers_behind_reductions_are_told_of_a_group_of_their_own() -> None:
    message = advice(Plan(nbytes=(20, 20, 20, 20)))["fsdp-communicator"]
    assert "set_separate_reduce_scatter_group" in message and "2 FSDP units" in message
    assert "fsdp-communicator" not in advice(Plan(nbytes=(20, 20, 20, 20), blocks=True))
    assert "fsdp-communicator" not in advice(Plan(ahead=1))


def test_the_only_unit_is_divided_by_the_modules_of_its_lists() -> None:
    names = ("layers.0.up.weight", "layers.0.up.bias", "layers.1.up.weight", "head.weight", "scale")
    parameters = tuple(UnitParameter(name, "float32", 10 * at, 5 * at) for at, name in enumerate(names, start=1))
    unit = Unit(1, UnitKind.FSDP, "Model", parameters)
    assert bytes_by_child(unit) == {"": 50, "head": 40, "layers.0": 30, "layers.1": 30}


# Sums and members -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [Plan(), Plan(ahead=2), Plan(blocks=True), Plan(nbytes=(9, 1, 5), ahead=1)], ids=str)
def test_dimensions_add_up_to_each_step(plan: Plan) -> None:
    result = analyzed(plan)
    sums: defaultdict[tuple[int, int], int] = defaultdict(int)
    for row in result.dimensions:
        sums[row.rank, row.step] += row.exposed_charged_ns or 0
        parts = (row.peer_wait_ns, row.bubble_ns, row.transfer_ns, row.unmatched_ns)
        assert row.exposed_charged_ns == sum(part or 0 for part in parts) and None not in parts
    assert sums == {(row.rank, row.step): row.exposed_comm_ns for row in result.steps}
    assert {row.dimension for row in result.dimensions} == {"fsdp"}
    assert sum(row.exposed_charged_ns or 0 for row in result.units) == sum(sums.values())


def late() -> Result:
    """Rank 1 comes 20 ns after rank 0, which computes for 5 of these; then the transfer takes 10 ns. Before, each rank
    sends something that the other does not."""
    ranks = [
        rank(
            number,
            steps=(step(0, 0, 100),),
            calls=(
                call(1, 2, ran=(2, 8), group=f"own {number}", turn=0, origin="fsdp"),
                call(2, came, ran=(came, 40), turn=0, origin="fsdp"),
            ),
            groups=(Group("0", (0, 1), "gloo", 1), Group(f"own {number}", (number, 2), "gloo", 1)),
            windows=(window(0, 100, (10, 15)),),
        )
        for number, came in ((0, 10), (1, 30))
    ]
    return analyze_run(run(*ranks))


def test_exposed_time_is_divided_where_the_last_rank_has_come() -> None:
    first, second = late().dimensions
    told = [
        (row.exposed_charged_ns, row.peer_wait_ns, row.bubble_ns, row.transfer_ns, row.unmatched_ns)
        for row in (first, second)
    ]
    assert told == [(31, 15, 0, 10, 6), (16, 0, 0, 10, 6)]


def test_a_collective_of_which_the_waits_alone_are_known_is_divided_by_its_launches() -> None:
    ranks = [
        rank(
            number,
            steps=(step(0, 0, 100),),
            phases=(mark(Phase.BACKWARD, 0, 100, 0),),
            calls=(call(1, came, is_sync=True, issued_at_ns=60, waits=((came, 60),), turn=0, op=op, origin="fsdp"),),
            groups=(Group("0", (0, 1), "gloo", 1),),
        )
        for number, came, op in ((0, 10, "reduce_scatter_tensor"), (1, 40, "reduce_scatter_tensor"))
    ]
    told = [(row.peer_wait_ns, row.transfer_ns, row.unmatched_ns) for row in analyze_run(run(*ranks)).dimensions]
    assert told == [(30, 20, 0), (0, 20, 0)]


def mixed() -> Result:
    """A DDP bucket, a tensor-parallel module, the program's own call, and one of which nothing is known."""
    calls = (
        ddp_call(1, 40, 8, ran=(40, 50)),
        call(2, 12, ran=(12, 20), origin="dtensor", module="layers.0.mlp", group="tp"),
        call(3, 60, ran=(60, 70), origin="program"),
        call(4, 75, ran=(75, 80), origin=None),
        call(5, 90, ran=(90, 120), origin="pipeline", op="send", group="pp"),
        call(6, 130, ran=(130, 140), origin="dtensor", module="layers.0.mlp", group="tp"),
    )
    one = rank(
        0,
        steps=(step(0, 0, 100), step(1, 100, 200)),
        phases=(mark(Phase.FORWARD, 10, 30), mark(Phase.BACKWARD, 30, 55, 0)),
        calls=calls,
        reducers=(reducer([2], layout(0, 0, (0,))),),
        groups=(
            Group("0", (0, 1), "gloo", 2),
            Group("tp", (0, 1), "gloo", 2, "mesh_tp"),
            Group("pp", (0, 1), "gloo", 2, "stages"),
        ),
        windows=(window(0, 200, (10, 15)),),
    )
    return analyze_run(run(one))


def test_each_kind_of_unit_has_its_name_role_and_dimension() -> None:
    found = {row.seq: row for row in mixed().units}
    told = {seq: (row.kind, row.name, row.role, row.dimension, row.phase) for seq, row in found.items()}
    assert told[1] == ("bucket", "bucket 0", "all-reduce", "dp", "backward")
    assert told[2] == ("tensor", "layers.0.mlp", "all_reduce", "tp", "forward")
    assert told[3] == ("other", "all_reduce", "all_reduce", "other", None)
    assert told[5] == ("other", "send", "send", "pp", None)
    assert [found[seq].reason for seq in (1, 2)] == [None, None]
    assert found[3].reason == "the program issued it by itself"
    assert found[4].reason == "nothing tells who wanted it"
    assert found[5].reason == "pipeline issued it for no module that is known by name"


def test_a_call_that_ends_in_the_next_step_counts_in_both_steps_dimensions() -> None:
    result = mixed()
    by_step = {(row.step, row.dimension): row for row in result.dimensions}
    assert (by_step[0, "pp"].comm_ns, by_step[1, "pp"].comm_ns) == (10, 20)
    assert by_step[0, "tp"].mesh == "tp"
    for row in result.steps:
        assert row.exposed_comm_ns == sum(
            one.exposed_charged_ns or 0 for one in result.dimensions if one.step == row.step
        )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dp_shard", "fsdp"), ("fsdp", "fsdp"), ("dp_replicate", "dp"), ("dp", "dp"), ("tp", "tp"), ("model", "tp"),
        ("pp", "pp"), ("ep", "ep"), ("expert_parallel", "ep"), ("cp", "cp"), ("x", None), ("", None),
    ],
)  # fmt: skip
def test_a_mesh_dimension_means_what_its_name_says(name: str, expected: str | None) -> None:
    assert meaning(name) == expected


# For a reader ---------------------------------------------------------------------------------------------------------


def test_the_terminal_shows_the_units_that_the_step_waits_for() -> None:
    text = summary_text(analyzed(Plan(nbytes=(2, 2, 20, 2))))
    assert "Most exposed units  (" in text
    line = next(line for line in text.splitlines() if "unshard, forward" in line)
    assert re.match(r"  blocks\.2 +unshard, forward +2\.00 MB +1 +20\.0 ", line)
    assert "Exposed communication by dimension" not in text  # one dimension alone
    assert "Exposed communication by dimension" in summary_text(mixed())


def test_traffic_tells_the_bytes_of_each_unit() -> None:
    found = {(one.name, one.role): one for one in traffic_report(analyzed(Plan(nbytes=(2, 6)))).units}
    assert {key: (one.calls, one.nbytes, one.sent_nbytes) for key, one in found.items()} == {
        ("blocks.0", "unshard"): (2, 400_000, 200_000),
        ("blocks.1", "unshard"): (2, 1_200_000, 600_000),
        ("blocks.0", "reduce-scatter"): (1, 200_000, 100_000),
        ("blocks.1", "reduce-scatter"): (1, 600_000, 300_000),
    }


def test_two_runs_differ_in_the_units_that_another_prefetch_hides() -> None:
    sides = [figures_of(analyzed(plan), name, {}) for name, plan in (("before", Plan()), ("after", Plan(ahead=1)))]
    before, after = ([side] if side is not None else [] for side in sides)
    diff = compare(("before", "after"), before, after)
    changed = {(row.unit, row.role, row.phase): row.change_ns for row in diff.changes if row.kind == "unit"}
    assert len(changed) == 12
    assert {key: ns for key, ns in changed.items() if ns and key[2] == "forward"} == {
        (f"blocks.{at}", "unshard", "forward"): -2 * MS for at in (1, 2, 3)
    }
    assert "blocks.1 unshard, forward" in diff_text(diff)


def test_a_watched_run_shows_its_most_exposed_units() -> None:
    head, *rows = [
        "".join(words for words, _ in line) for line in unit_lines(last_steps(analyzed(Plan(nbytes=(2, 9)))), 96, 3)
    ]
    assert head.endswith("the 2 most exposed of 4") or "exposed ms" in head
    assert len(rows) == 2 and rows[0].split()[0] == "blocks.1"


def test_the_report_has_a_table_of_units() -> None:
    html = page(analyzed(Plan()))
    assert "Exposed time per unit" in html and '<td class="words">blocks.0</td>' in html
    assert "Exposed time per unit" not in page(analyze_run(run(rank(0, steps=(step(0, 0, 100),)))))
