"""What remote calls take of a rank's steps, and ranks that have no steps of their own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from analysis_records import MAIN, OTHER_THREAD, call, mark, rank, run, step, window

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import function_word, rpc_functions
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.findings import Finding
from ddptrace.load.tables import RankRpc, RankRun, RpcCall, RpcRun, RpcWait, Run
from ddptrace.render.headline import headline
from ddptrace.render.report import page
from ddptrace.render.rpc_words import split_parts
from ddptrace.render.terminal import summary_text
from ddptrace.schema import Phase, RpcOp, StepEnd

WORKERS = ((0, "trainer"), (1, "server"))
PHASES = (mark(Phase.FORWARD, 10, 50), mark(Phase.BACKWARD, 50, 90, 0), mark(Phase.OPTIMIZER, 90, 100))


def remote(issued: int, done: int | None, op: RpcOp = RpcOp.RPC_SYNC, **fields: Any) -> RpcCall:
    known: dict[str, Any] = {
        "id": issued, "function": "forward", "callee": "server", "is_internal": False, "is_native": False,
        "begin_at_ns": issued - 1, "issued_at_ns": issued, "done_at_ns": done, "error": None, "nbytes_out": 40,
        "nbytes_back": 40, "wants_nbytes": 0, "gradient_nbytes": None, "thread": MAIN,
    }  # fmt: skip
    return RpcCall(op=op, **(known | fields))


def served(begin: int, end: int, of: int | None = None) -> RpcRun:
    return RpcRun(of, "forward", "trainer", begin, end, False, False, 40, 40, None)


def trainer(*calls: RpcCall, waits: tuple[RpcWait, ...] = (), **fields: Any) -> RankRun:
    """One step, 0 to 100, of which 10 to 100 computes where nothing waits."""
    known: dict[str, Any] = {"steps": [step(0, 0, 100)], "phases": PHASES}
    return replace(rank(**(known | fields)), rpc=RankRpc(WORKERS[:1], calls, (), waits))


def server(*runs: RpcRun, **fields: Any) -> RankRun:
    return replace(rank(1, **fields), rpc=RankRpc(WORKERS[1:], (), runs))


def only_step(one: RankRun) -> StepRow:
    (row,) = analyze_run(run(one)).steps
    assert row.compute_ns + row.exposed_comm_ns + row.exposed_memory_ns + row.idle_ns == row.window_ns == 100
    return row


@pytest.mark.parametrize(
    ("of", "compute_ns", "wait_ns"),
    [
        (trainer(), 90, 0),
        (trainer(remote(20, 40)), 70, 20),
        (trainer(remote(20, 40, RpcOp.TO_HERE), remote(30, 60, RpcOp.BACKWARD)), 50, 40),
        (trainer(remote(20, 40, RpcOp.RPC_ASYNC), remote(20, 40, RpcOp.REMOTE)), 90, 0),
        (trainer(remote(20, 40, RpcOp.RPC_ASYNC), waits=(RpcWait(30, 40, MAIN),)), 80, 10),
        (trainer(remote(0, 5)), 90, 5),  # nothing would have computed there either
        (trainer(remote(20, 40, thread=OTHER_THREAD), waits=(RpcWait(40, 60, OTHER_THREAD),)), 90, 0),
        (trainer(remote(95, None)), 85, 5),  # no end: as long as there are records
        (trainer(remote(40, 30)), 90, 0),  # its answer was quicker than its caller
    ],
)
def test_what_waits_for_remote_calls_does_not_compute_and_is_a_part_of_idle(
    of: RankRun, compute_ns: int, wait_ns: int
) -> None:
    row = only_step(of)
    assert (row.compute_ns, row.rpc_wait_ns) == (compute_ns, wait_ns)
    assert wait_ns <= row.idle_ns


def test_an_instant_in_which_something_else_runs_is_that() -> None:
    beside = call(1, 20, ran=(20, 30))
    assert only_step(trainer(remote(20, 40), calls=[beside])).rpc_wait_ns == 10
    computing = trainer(remote(20, 40), windows=[window(0, 200, (25, 35))])
    assert only_step(computing).rpc_wait_ns == 10
    assert only_step(computing).compute_ns == 10


def test_of_files_that_others_recorded_nobody_knows_what_waited_for_remote_calls() -> None:
    assert only_step(trainer(recorded=False)).rpc_wait_ns is None


def found(one: Run) -> dict[str, Finding]:
    return {finding.code: finding for finding in analyze_run(one).findings}


UPDATES = [step(0, 0, 30), step(1, 30, 60)]
SERVED_PHASES = [mark(Phase.FORWARD, 10, 15, thread=7), mark(Phase.OPTIMIZER, 25, 30, thread=8)]


@pytest.mark.parametrize(
    "alone",
    [
        server(served(10, 20, 20)),
        server(served(10, 20), served(25, 30), phases=SERVED_PHASES, steps=UPDATES),
        replace(rank(1), rpc=RankRpc(WORKERS[1:], (remote(5, 900),), ())),  # it has others do it
    ],
)
def test_a_rank_that_only_serves_or_calls_has_no_steps_and_is_not_told_to_mark_any(alone: RankRun) -> None:
    told = run(trainer(remote(20, 40)), alone)
    assert {row.rank for row in analyze_run(told).steps} == {0}
    findings = found(told)
    assert "no-steps" not in findings and findings["only-remote"].where == "rank 1"


@pytest.mark.parametrize(
    "trains",
    [
        server(served(0, 100), phases=PHASES, steps=[step(0, 0, 100)]),  # its whole training is a remote call
        server(served(10, 20), phases=SERVED_PHASES, steps=UPDATES),  # the update is its own
        server(served(10, 20), steps=[step(0, 0, 30, StepEnd.SAID)]),
    ],
)
def test_a_rank_that_also_trains_keeps_its_steps(trains: RankRun) -> None:
    told = run(trainer(), trains)
    assert {row.rank for row in analyze_run(told).steps} == {0, 1}
    assert "only-remote" not in found(told)


def test_a_rank_that_serves_functions_of_torch_alone_is_known_by_its_callers() -> None:
    # GIVEN calls that the callee carries out without Python, so that it sees nothing of them, and one barrier
    asks = [remote(at, at + 2, is_native=True, function="aten::add") for at in (20, 30, 40)]
    waits = call(1, 95, op="barrier", nbytes_in=0, nbytes_out=0)
    findings = found(run(trainer(*asks, calls=[waits]), server(calls=[waits])))
    assert "no-steps" not in findings and findings["only-remote"].where == "rank 1"
    assert "(3 remote calls served, 0 made)" in findings["only-remote"].message
    # AND one that takes part in more than that is told to mark its steps
    assert "no-steps" in found(run(trainer(*asks), server(calls=[call(1, 95)])))
    assert "no-steps" in found(run(trainer(), server(calls=[waits])))


def test_a_rank_without_steps_and_without_remote_calls_is_still_told_to_mark_them() -> None:
    assert found(run(trainer(), rank(1)))["no-steps"].where == "rank 1"
    inside = replace(remote(5, 10), is_internal=True)
    assert "no-steps" in found(run(trainer(), replace(rank(1), rpc=RankRpc((), (inside,), ()))))


def waiting(run_ns: int) -> Result:
    """A call of 40 in a step of 100, of which its run takes `run_ns`."""
    return analyze_run(run(trainer(remote(30, 69)), server(served(30, 30 + run_ns, 30))))


@pytest.mark.parametrize(("run_ns", "advice"), [(30, "give their worker less to do"), (10, "fewer and smaller calls")])
def test_the_wait_is_named_with_the_calls_that_take_longest_and_what_they_consist_of(run_ns: int, advice: str) -> None:
    finding = next(one for one in waiting(run_ns).findings if one.code == "waiting-for-remote-calls")
    assert "39 % of the step" in finding.message and "forward at server: 1 call a step" in finding.message
    assert advice in finding.message


def test_next_to_no_wait_is_no_finding() -> None:
    assert "waiting-for-remote-calls" not in found(run(trainer(remote(20, 21))))


def test_terminal_and_headline_name_the_remote_calls_where_no_collective_ran() -> None:
    result = waiting(30)
    text = summary_text(result)
    assert "in remote calls" in text and "It makes 1 remote call and waits 39 ns for it (39 %)." in text
    assert "Look at next" in text and "No communication" not in text
    top = headline(result, summarize(result))
    assert top.number == "39 %" and "waits for remote calls" in top.words
    calm = analyze_run(run(trainer(remote(20, 40, RpcOp.RPC_ASYNC))))
    assert "Next to nothing of it waits for its remote calls." in headline(calm, summarize(calm)).words
    assert "does not wait for it" in summary_text(calm)


def test_the_report_lists_pairs_functions_and_failures_and_takes_no_name_for_markup() -> None:
    bad = remote(40, 60, function="<script>", callee="<i>", error="ValueError", id=7)
    html = page(analyze_run(run(trainer(remote(10, 30), bad), server(served(12, 24, 10)))))
    (section,) = re.findall(r"<h2>Remote calls</h2>.*?</section>", html)
    assert "<h3>Functions</h3>" in section and "<h3>Failed calls</h3>" in section
    assert "trainer → server" in section and "ValueError" in section
    assert "<script>" not in section and "&lt;script&gt;" in section and "&lt;i&gt;" in section


def test_what_a_function_did_not_run_is_the_wire_and_the_queue_unless_it_gave_a_future() -> None:
    called, ran = remote(10, 60), served(12, 24, 10)
    rows = analyze_run(run(trainer(called), server(ran))).rpcs
    (plain,) = rpc_functions(rows)
    assert (plain.call_ns, plain.call_max_ns, plain.run_ns, plain.rest_ns) == (51, 51, 12, 39)
    (later,) = rpc_functions([replace(row, gives_future=True) for row in rows])
    assert later.rest_ns is None and later.gives_future


def test_a_function_of_torchscript_goes_by_its_own_name() -> None:
    assert function_word("__torch__.torch.distributed.optim.optimizer._step") == "_step"
    assert function_word("Layer.forward") == "Layer.forward"


def test_the_breakdown_in_the_report_shows_the_wait_apart_from_the_rest_of_idle() -> None:
    parts = {part.name: part.ns for part in split_parts(summarize(waiting(30)))}
    assert parts == {"compute": 51, "exposed_comm": 0, "exposed_memory": 0, "rpc_wait": 39, "idle": 10}
