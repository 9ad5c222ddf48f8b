"""The verdict on many process groups: each cause out of measurements made for it, with the numbers it rests on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ddptrace.bench.conduct import in_environments
from ddptrace.bench.experiments.groups import EXPERIMENT, LOADED_STEPS, Arrangement, Options, load_of_host, waited
from ddptrace.bench.experiments.groups_verdict import Cause, Point, verdict
from ddptrace.errors import DdptraceError

MS = 1e6
MB = 1_000_000
ONE = Point(
    groups=1,
    step_ns=40 * MS,
    sent_nbytes=32 * MB,
    calls=4,
    span_ns=40 * MS,
    exec_ns=20 * MS,
    behind_ns=10 * MS,
    idle_ns=0,
    cores=2,
    cpu_ns=50 * MS,
    cpu_ratio=0.6,
    machine_ratio=0.65,
    ready=0.5,
)
"""Two worker threads run two of four at once."""


def eight(**different: float | None) -> Point:
    """Eight groups that take eight times as long, each all-reduce eight times longer."""
    longer = replace(ONE, groups=8, step_ns=320 * MS, sent_nbytes=256 * MB, span_ns=320 * MS, exec_ns=160 * MS)
    return replace(longer, **different)  # type: ignore[arg-type]


def test_busy_cores_are_the_cause_and_the_need_of_one_group_foretells_the_time() -> None:
    told = verdict(ONE, eight(cpu_ratio=0.97, ready=14.0), 800 * MB)
    assert (told.cause, told.growth, told.longer, told.turns) == (Cause.CORES, 8, 8, 1)
    assert "97 % of 2 cores busy" in told.words and "14.0 threads are ready" in told.words
    assert "8 at that price need 200 ms of 2 cores" in told.words, "50 ms × 8 groups ÷ 2 cores"


def test_cores_are_the_cause_too_where_other_programs_have_half_of_them() -> None:
    told = verdict(ONE, eight(cpu_ratio=0.5, machine_ratio=1.0, ready=6.0), 800 * MB)
    assert told.cause is Cause.CORES and "with the kernel and other programs: 100 %" in told.words


def test_idle_cores_and_bytes_that_do_not_grow_are_the_wire() -> None:
    told = verdict(ONE, eight(cpu_ratio=0.1, machine_ratio=0.12, ready=0.0), 800 * MB)
    assert told.cause is Cause.WIRE
    assert "10 % of 2 cores" in told.words and "800 MB/s, 100 % of the most" in told.words


def test_idle_cores_and_fewer_bytes_than_the_wire_has_shown_to_carry_are_not_called_the_wire() -> None:
    assert verdict(ONE, eight(cpu_ratio=0.1, ready=0.0), 2000 * MB).cause is Cause.OPEN


def test_half_busy_cores_leave_it_open() -> None:
    assert verdict(ONE, eight(cpu_ratio=0.7, ready=0.5), 800 * MB).cause is Cause.OPEN


def test_calls_behind_others_of_their_group_are_the_queue() -> None:
    one = replace(ONE, calls=1, span_ns=20 * MS, exec_ns=20 * MS, behind_ns=0)
    many = replace(one, calls=8, step_ns=160 * MS, span_ns=160 * MS, behind_ns=70 * MS, cpu_ratio=0.97)
    told = verdict(one, many, 800 * MB)
    assert (told.cause, told.longer, told.turns) == (Cause.QUEUE, 1, 8)
    assert "waits 70.0 ms behind others of its group and runs 20.0 ms" in told.words


def test_calls_that_are_not_launched_together_are_the_programs_choice() -> None:
    one = replace(ONE, span_ns=80 * MS, behind_ns=0)
    told = verdict(one, replace(one, groups=8, step_ns=320 * MS, calls=32, span_ns=640 * MS), 800 * MB)
    assert told.cause is Cause.PROGRAM and "1.00 run at once, of 8 groups" in told.words


def test_a_traced_run_that_grew_otherwise_does_not_explain_and_processors_decide() -> None:
    # GIVEN turns that would be the queue's, in a traced run that took half the time of one group's
    unlike = eight(exec_ns=2 * MS, span_ns=20 * MS, behind_ns=9 * MS, cpu_ratio=0.97)
    told = verdict(ONE, unlike, 800 * MB)
    assert told.cause is Cause.CORES and "grew 0.50 times, too differently" in told.words


def test_no_more_turns_are_no_queue() -> None:
    # GIVEN shorter executions in as many turns, behind others as ever
    told = verdict(ONE, eight(step_ns=60 * MS, exec_ns=18 * MS, span_ns=36 * MS, cpu_ratio=0.97), 4000 * MB)
    assert (told.cause, told.turns) == (Cause.CORES, 1)


def test_what_takes_no_longer_has_no_cause() -> None:
    told = verdict(ONE, eight(step_ns=42 * MS), 7000 * MB)
    assert told.cause is Cause.NONE and told.words.startswith("1.05 times the time, no longer: ")


def test_on_a_gpu_busy_processors_are_not_blamed() -> None:
    told = verdict(ONE, eight(cpu_ratio=0.97, ready=9.0, on_gpu=True), 800 * MB)
    assert told.cause is Cause.WIRE and "not distinguished here" in told.words


def test_without_executions_the_factors_are_not_told() -> None:
    told = verdict(replace(ONE, exec_ns=None), eight(cpu_ratio=0.97), 800 * MB)
    assert (told.longer, told.turns, told.cause) == (None, None, Cause.CORES) and "traced" not in told.words


@pytest.mark.parametrize(("threads", "behind"), [(1, [0, 11, 22, 33]), (2, [0, 0, 11, 13]), (4, [0, 0, 0, 0])], ids=str)
def test_a_call_is_behind_others_until_a_worker_is_free(threads: int, behind: list[int]) -> None:
    # GIVEN four calls launched at once, of which as many run as there are workers, each a moment after it could
    begins = {1: [1, 12, 23, 34], 2: [1, 3, 12, 14], 4: [1, 3, 4, 5]}[threads]
    # WHEN each runs 10 and begins when it does
    found = list(waited([(0, begin, begin + 10) for begin in begins], threads))
    # THEN what is not behind others is time in which a worker was free
    assert [each[0] for each in found] == behind
    assert [each[0] + each[1] for each in found] == begins


def test_a_call_that_is_launched_late_was_never_behind() -> None:
    assert list(waited([(0, 1, 11), (50, 53, 60)], 1)) == [(0, 1, 10), (0, 3, 7)]


def test_processors_are_shared_out_over_the_cores_of_the_host() -> None:
    spent = (1000, 800, 400, 9, 10), (900, 600, 600, 8, 9)
    told = load_of_host([(2, each) for each in spent], 1000)
    assert (told["cpu_ratio"], told["machine_ratio"], told["ready"]) == (0.7, 0.9, 1.0)
    assert told["cpu_ns"] == 1400 / LOADED_STEPS


def test_pairs_share_no_rank_and_cross_from_the_first_half_to_the_second() -> None:
    assert Arrangement("pairs", "sync", 3).members(8) == [(0, 4), (1, 5), (2, 6)]
    assert Arrangement("same", "sync", 3).members(8) == [(0, 4)] * 3


def test_a_job_is_started_as_asked_and_once_in_each_environment() -> None:
    asked = Options(environments=("A=1", "A=1 B=2"))
    assert [each.environment for each in in_environments(asked)] == ["", "A=1", "A=1 B=2"]


def test_what_sets_no_variable_is_refused_in_one_sentence() -> None:
    with pytest.raises(DdptraceError, match="'OMP' sets no environment variable: write NAME=VALUE"):
        Options(environments=("A=1", "OMP"))


def measured(step_ms: dict[str, float]) -> dict[str, object]:
    """One job as JSON. `step_ms` by "shape-mode-groups"."""
    loads = {
        name: {"cores": 2, "cpu_ns": 5e7, "cpu_ratio": 0.9, "machine_ratio": 0.9, "ready": 5.0} for name in step_ms
    }
    parts = [name.split("-") for name in step_ms]
    return {
        "setup": {"ranks": "4 on 1 host"},
        "environment": "",
        "on_gpu": False,
        "loads": loads,
        "arrangements": [
            {"name": name, "shape": shape, "mode": mode, "groups": int(groups), "threads": None}
            for name, (shape, mode, groups) in zip(step_ms, parts, strict=True)
        ],
        "calls": dict.fromkeys(step_ms),
        "times_ns": {name: [[round((ms + d) * 1e6)] for d in (-1, 0, 1)] for name, ms in step_ms.items()},
    }


def test_the_sheet_answers_for_the_most_groups_and_admits_noise() -> None:
    # GIVEN pairs that double and groups over the same ranks that differ by less than their rounds do
    times = {"pairs-sync-1": 20, "pairs-sync-2": 40, "pairs-async-1": 20, "pairs-async-2": 40}
    times |= {"same-sync-1": 20, "same-sync-2": 21, "same-async-1": 20, "same-async-2": 30}
    made = EXPERIMENT.sheet(Options(groups=(1, 2)), [measured(times)])
    # THEN
    pairs, _, same, *_ = made.words
    assert pairs.startswith("2 disjoint pairs of ranks, synchronously, against 1, 2.00 times as many: 2.00 times")
    assert same.endswith("synchronously, against 1: no difference beyond the noise (1.05 times).")
    assert [row[-1] for row in made.grids[0].rows[:2]] == ["-", "cores"]
    assert all(len(row) == len(grid.heads) for grid in made.grids for row in grid.rows)
    assert [line.name for line in made.charts[0].lines] == ["pairs, sync", "pairs, async", "same, sync", "same, async"]


def test_charts_hold_the_points_in_the_order_of_the_groups() -> None:
    times = {
        f"{shape}-{mode}-{n}": 10.0 * n for shape in ("pairs", "same") for mode in ("sync", "async") for n in (1, 2)
    }
    made = EXPERIMENT.sheet(Options(groups=(1, 2)), [measured(times)])
    assert all(before < after for line in made.charts[0].lines for before, after in pairwise(line.x))  # type: ignore[operator]


def test_jobs_that_tried_an_environment_are_rows_of_tuning_and_not_part_of_the_setup() -> None:
    asked = Options(groups=(1,), environments=("OMP_NUM_THREADS=2",))
    plain = measured({"pairs-sync-1": 20, "pairs-async-1": 20, "same-sync-1": 20, "same-async-1": 20})
    tried = measured({"pairs-async-1": 30, "same-async-1": 40}) | {"environment": "OMP_NUM_THREADS=2"}
    tried["setup"] = {"ranks": "4 on 1 host", "device": "CPU with 2 threads"}
    made = EXPERIMENT.sheet(asked, [plain, tried])
    assert made.setup == (("ranks", "4 on 1 host"), ("executions from", "nothing: the traces show no execution"))
    *_, tuned, _ = made.grids
    assert [row[:2] for row in tuned.rows] == [
        ("1 pairs", "default"),
        ("1 pairs", "OMP_NUM_THREADS=2"),
        ("1 same", "default"),
        ("1 same", "OMP_NUM_THREADS=2"),
    ]
