"""What a reader is told of remote calls: what was waited for, medians and how many they are of, the split of idle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from analysis_records import MAIN, OTHER_THREAD, mark, rank, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import rpc_traffic
from ddptrace.analysis.summary import summarize
from ddptrace.load.tables import RankRpc, RankRun, RpcCall, RpcRun, RpcWait
from ddptrace.render.figure import Figure
from ddptrace.render.report import drawn
from ddptrace.render.rpc_words import pair_line
from ddptrace.render.terminal import summary_text
from ddptrace.schema import Phase, RpcOp, StepEnd
from tests.made import make_result

WORKERS = ((0, "trainer"), (1, "server"))
PHASES = (mark(Phase.FORWARD, 10, 50), mark(Phase.BACKWARD, 50, 90, 0), mark(Phase.OPTIMIZER, 90, 100))


def remote(begin: int, done: int, function: str = "forward", **fields: Any) -> RpcCall:
    known: dict[str, Any] = {
        "id": begin, "op": RpcOp.RPC_ASYNC, "callee": "server", "is_internal": False, "is_native": False,
        "issued_at_ns": begin, "error": None, "nbytes_out": 40, "nbytes_back": 40, "wants_nbytes": 0,
        "gradient_nbytes": None, "thread": MAIN,
    }  # fmt: skip
    return RpcCall(function=function, begin_at_ns=begin, done_at_ns=done, **(known | fields))


def served(begin: int, end: int, of: int) -> RpcRun:
    return RpcRun(of, "forward", "trainer", begin, end, False, False, 40, 40, None)


def trainer(*calls: RpcCall, waits: tuple[tuple[int, int], ...] = (), steps: int = 1) -> RankRun:
    """Steps of 100, the phases in the first."""
    waited = tuple(RpcWait(begin, end, MAIN) for begin, end in waits)
    marks = [step(k, 100 * k, 100 * k + 100) for k in range(steps)]
    return replace(rank(steps=marks, phases=PHASES), rpc=RankRpc(WORKERS[:1], calls, (), waited))


def server(*runs: RpcRun) -> RankRun:
    return replace(rank(1), rpc=RankRpc(WORKERS[1:], (), runs))


def waiting(result: Result) -> str:
    (finding,) = [one for one in result.findings if one.code == "waiting-for-remote-calls"]
    return finding.message


def test_a_wait_in_a_distributed_backward_counts_for_that_and_not_for_the_function_with_the_longest_calls() -> None:
    told = waiting(analyze_run(run(trainer(remote(15, 35), waits=((25, 35), (55, 85))))))
    assert told.startswith("For 40 % of the step")
    assert "Most of that, 30 ns, is for the distributed backward" in told and "forward at" not in told


def test_a_wait_counts_for_the_call_that_was_under_way_in_it_and_not_for_a_longer_one_that_had_almost_ended() -> None:
    calls = remote(11, 30, "hidden"), remote(31, 49, "awaited")
    assert "is for awaited at server: 1 call a step" in waiting(analyze_run(run(trainer(*calls, waits=((28, 49),)))))


def test_of_two_calls_that_a_wait_is_for_the_one_that_was_done_last_made_it_long() -> None:
    calls = remote(11, 20, "quick"), remote(11, 40, "slow")
    assert "is for slow at server" in waiting(analyze_run(run(trainer(*calls, waits=((12, 40),)))))


def test_a_call_that_goes_on_long_after_the_wait_is_not_what_was_waited_for() -> None:
    calls = remote(5, 95, "prefetch"), remote(20, 40, "forward")
    assert "is for forward at server" in waiting(analyze_run(run(trainer(*calls, waits=((22, 40),)))))


def test_where_no_call_was_under_way_only_the_length_of_the_wait_is_told() -> None:
    told = waiting(analyze_run(run(trainer(remote(1, 5), waits=((20, 40),)))))
    assert told.endswith("rank-steps).") and "is for" not in told


def test_what_was_waited_for_adds_up_to_the_step_s_wait() -> None:
    from ddptrace.analysis.rank_view import view_of
    from ddptrace.analysis.rpc.rows import BACKWARD, waited_for

    others = remote(60, 70, "elsewhere", thread=OTHER_THREAD)
    one = trainer(remote(15, 35), others, waits=((25, 35), (48, 52), (85, 95)))
    found = {waited.target: waited.ns for waited in waited_for(view_of(one))}
    assert found == {("forward", "server"): 10, BACKWARD: 2 + 5, ("", None): 2 + 5}
    (row,) = analyze_run(run(one)).steps
    assert row.rpc_wait_ns == sum(found.values()) == 24


def test_a_first_call_that_takes_a_hundred_times_as_long_does_not_move_the_times_that_are_told() -> None:
    calls = [remote(10, 2_510, id=1), *(remote(3_000 + 100 * k, 3_020 + 100 * k, id=2 + k) for k in range(4))]
    result = analyze_run(run(trainer(*calls, steps=40), server(served(3_005, 3_012, of=2))))
    (pair,) = result.rpc_pairs
    assert (pair.calls, pair.call_median_ns, pair.runs, pair.run_median_ns) == (5, 20, 1, 7)
    assert pair_line(pair).endswith("20 ns  7 ns of 1")
    assert "median call" in summary_text(result) and "mean call" not in summary_text(result)
    assert pair_line(replace(pair, runs=5)).endswith("20 ns  7 ns")


def test_bytes_of_a_torchscript_call_without_tensors_are_not_measured_and_not_none_sent() -> None:
    script = remote(10, 20, "__torch__.step", is_native=True, nbytes_out=0, nbytes_back=0)
    result = analyze_run(run(trainer(script)))
    (pair,), (digest,) = result.rpc_pairs, rpc_traffic(result.rpcs, {(0, 0)})
    assert (pair.nbytes_out, pair.nbytes_back) == (digest.nbytes_out, digest.nbytes_back) == (None, None)
    assert pair_line(pair).split()[5:8] == ["-", "-", "0"]
    (with_one,) = analyze_run(run(trainer(script, replace(script, id=2, nbytes_out=64)))).rpc_pairs
    assert (with_one.nbytes_out, with_one.nbytes_back) == (64, None)


def figures(result: Result) -> dict[str, Figure]:
    return {figure.key: figure for figure in drawn(result, summarize(result))}


@pytest.mark.parametrize("key", ["steps", "ranks"])
def test_every_picture_of_the_parts_splits_idle_as_the_headline_does(key: str) -> None:
    shown = figures(analyze_run(run(trainer(remote(15, 35), waits=((25, 35), (55, 85))))))[key]
    lengths = {trace["name"]: sum(trace["x" if key == "ranks" else "y"]) for trace in shown.data}
    # of 100 ns 10 are before the first phase and 40 are waits; the pictures are in ms
    assert lengths["waiting for remote calls"] == pytest.approx(40e-6)
    assert lengths["idle"] == pytest.approx(10e-6) and sum(lengths.values()) == pytest.approx(100e-6)


def test_a_picture_of_a_run_without_remote_waits_does_not_name_them() -> None:
    shown = figures(make_result(2, 4, 3))
    assert not [trace for key in ("steps", "ranks") for trace in shown[key].data if "remote" in trace["name"]]


def test_numbers_are_called_bucket_indices_only_where_there_are_buckets() -> None:
    without = figures(analyze_run(run(trainer(remote(15, 35)))))["timeline"].caption
    assert "bucket" not in without and without.endswith("closed in the drawing.")
    assert "Numbers are bucket indices." in figures(make_result(2, 4, 3))["timeline"].caption


def test_windows_that_were_asked_for_and_never_opened_are_told_of_in_a_run_without_collectives() -> None:
    told = run(trainer(remote(15, 35), steps=10))
    asked = {one.code: one.message for one in analyze_run(replace(told, manifest={"profile": True})).findings}
    assert "completed no window in 10 steps" in asked["coarse-compute"] and "t.step()" not in asked["coarse-compute"]
    assert "coarse-compute" not in {one.code for one in analyze_run(told).findings}


def test_where_no_update_ends_steps_the_missing_window_is_told_with_what_makes_them_count() -> None:
    by_backward = trainer(remote(15, 35))
    by_backward = replace(by_backward, steps=[step(k, 100 * k, 100 * k + 100, StepEnd.BACKWARD) for k in range(10)])
    result = analyze_run(replace(run(by_backward), manifest={"profile": True}))
    (message,) = [one.message for one in result.findings if one.code == "coarse-compute"]
    assert message.endswith("Call t.step() at the end of each iteration.")
