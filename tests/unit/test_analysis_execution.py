"""When a communication ran, by the strongest evidence there is."""

from __future__ import annotations

from analysis_records import call, hook, rank, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.collectives.execution import communications
from ddptrace.load.tables import Call, HookCall
from ddptrace.schema import Evidence


def execs(*calls: Call, hooks: tuple[HookCall, ...] = (), threads: int | None = 2) -> dict[int, tuple[object, ...]]:
    comms = communications(rank(calls=calls, hooks=hooks, threads=threads))
    return {comm.seq: (comm.begin_at_ns, comm.end_at_ns, comm.evidence) for comm in comms}


def test_a_profilers_range_is_believed_before_all_else() -> None:
    assert execs(call(1, 5, ran=(8, 20), done_at_ns=22, waits=((6, 23),))) == {1: (8, 20, Evidence.BACKEND)}


def test_with_two_workers_a_third_call_starts_when_the_first_worker_is_free() -> None:
    a, b, c, d = (
        call(1, 0, done_at_ns=10),
        call(2, 1, done_at_ns=30),
        call(3, 2, done_at_ns=25),
        call(4, 3, done_at_ns=40),
    )
    assert execs(a, b, c, d) == {
        1: (0, 10, Evidence.CALLBACK),
        2: (1, 30, Evidence.CALLBACK),
        3: (10, 25, Evidence.CALLBACK),
        4: (25, 40, Evidence.CALLBACK),
    }


def test_with_one_worker_calls_run_one_after_another() -> None:
    a, b = call(1, 0, done_at_ns=10), call(2, 1, done_at_ns=30)
    assert execs(a, b, threads=1)[2] == (10, 30, Evidence.CALLBACK)


def test_without_a_queue_a_call_runs_from_its_launch() -> None:
    a, b = call(1, 0, done_at_ns=10), call(2, 1, done_at_ns=30)
    assert execs(a, b, threads=None)[2] == (1, 30, Evidence.CALLBACK)


def test_groups_have_queues_of_their_own() -> None:
    a, b = call(1, 0, done_at_ns=10), call(2, 1, done_at_ns=30, group="1")
    assert execs(a, b, threads=1)[2] == (1, 30, Evidence.CALLBACK)


def test_a_profiled_call_keeps_its_worker_busy_for_the_next() -> None:
    a, b = call(1, 0, ran=(3, 12)), call(2, 1, done_at_ns=30)
    assert execs(a, b, threads=1)[2] == (12, 30, Evidence.CALLBACK)


def test_point_to_point_calls_do_not_stand_in_the_queue() -> None:
    a, b, c = call(1, 0, done_at_ns=50), call(2, 1, done_at_ns=20, op="send"), call(3, 2, done_at_ns=60)
    assert execs(a, b, c, threads=1) == {
        1: (0, 50, Evidence.CALLBACK),
        2: (1, 20, Evidence.CALLBACK),
        3: (50, 60, Evidence.CALLBACK),
    }


def test_a_callback_that_contradicts_the_queue_gives_no_negative_time() -> None:
    a, b = call(1, 0, done_at_ns=30), call(2, 1, done_at_ns=20)
    assert execs(a, b, threads=1)[2] == (20, 20, Evidence.CALLBACK)


def test_a_wait_alone_bounds_the_execution_from_above() -> None:
    assert execs(call(1, 5, waits=((7, 9), (15, 18)))) == {1: (5, 18, Evidence.HOST)}


def test_a_call_of_which_nothing_is_known_stays_unknown() -> None:
    assert execs(call(1, 5)) == {1: (None, None, None)}


def test_a_hook_without_a_collective_is_itself_the_communication() -> None:
    # GIVEN two hooks, of which only the second issued a collective that was seen
    hooks = hook(1, 10, 12, 30, nbytes=64), hook(2, 13, 15, 40, index=1)
    one = rank(steps=[step(0, 0, 50)], calls=[call(3, 14, hook=2, ran=(20, 35))], hooks=hooks)

    rows = analyze_run(run(one)).collectives

    first = rows[0]
    assert [row.op for row in rows] == ["comm_hook", "all_reduce"]
    assert (first.seq, first.group, first.nbytes, first.launch_at_ns) == (1, "", 64, 10)
    assert (first.exec_start_at_ns, first.exec_end_at_ns, first.evidence) == (10, 30, Evidence.CALLBACK)


def test_a_hook_that_never_completed_is_unknown() -> None:
    assert execs(hooks=(hook(1, 10, 12, None),)) == {1: (None, None, None)}


def test_a_call_names_the_larger_side_as_its_bytes() -> None:
    rows = analyze_run(
        run(rank(calls=[call(1, 0, nbytes_in=100, nbytes_out=400), call(2, 1, nbytes_in=400, nbytes_out=100)]))
    )
    assert [row.nbytes for row in rows.collectives] == [400, 400]


def test_a_collective_that_crosses_a_steps_end_has_a_row_in_each_step() -> None:
    one = rank(steps=[step(0, 0, 10), step(1, 10, 20)], calls=[call(1, 4, ran=(6, 25), waits=((24, 25),))])
    rows = analyze_run(run(one)).collectives
    assert [(row.step, row.part, row.exec_start_at_ns, row.exec_end_at_ns) for row in rows] == [
        (0, 0, 6, 10),
        (1, 1, 10, 20),
        (None, 2, 20, 25),
    ]
    assert [row.queue_ns for row in rows] == [2, None, None]
    assert [row.wait_ns for row in rows] == [1, None, None]


def test_an_unknown_call_has_one_row_in_the_step_that_launched_it() -> None:
    one = rank(steps=[step(3, 0, 10), step(4, 10, 20)], calls=[call(1, 12), call(2, 40)])
    rows = analyze_run(run(one)).collectives
    assert [(row.step, row.part, row.comm_ns, row.queue_ns, row.wait_ns) for row in rows] == [
        (4, 0, None, None, None),
        (None, 0, None, None, None),
    ]
