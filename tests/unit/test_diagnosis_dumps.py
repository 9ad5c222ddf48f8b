"""Who is to blame, as dumps tell it: a job of 16 ranks that faults bring to a stop, and small ones made by hand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ddptrace.analysis.diagnosis.diagnose import diagnose
from ddptrace.analysis.diagnosis.tables import Diagnosis, Verdict
from ddptrace.load.diagnosis.tables import JobState
from ddptrace.load.flight_recorder.job import read_dumps
from ddptrace.render.diagnosis import diagnosis_text
from tests.simulated_job import Fault, Job, stopped_by, write
from tests.unit.last_states import call, done, group, rank, verdicts
from tests.unit.last_states import job as recorded
from tests.unit.test_flight_recorder import dump, entry

BLAMING = ("stuck", "message", "device", "missing", "mismatch")


def read(folder: Path, dumps: dict[int, dict[str, Any]]) -> JobState:
    job = read_dumps(write(dumps, folder))
    assert job is not None
    return job


def diagnosed(folder: Path, job: Job, **options: bool) -> Diagnosis:
    return diagnose(read(folder, job.dumps(**options)))


def blamed(found: Diagnosis) -> set[int]:
    return {rank for verdict in found.verdicts if verdict.kind in BLAMING for rank in verdict.absent}


def of(found: Diagnosis, rank: int) -> Verdict:
    return next(verdict for verdict in found.verdicts if rank in verdict.absent)


# A large job ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("only_active", [True, False])
@pytest.mark.parametrize("fault", [Fault.LOCK_GIL, Fault.GPU_ERROR, Fault.KILLED])
def test_one_faulty_rank_is_named_and_nobody_who_only_waits(tmp_path: Path, fault: Fault, only_active: bool) -> None:
    chance = random.Random(f"{fault} {only_active}")
    for number in range(3):
        faulty = chance.randrange(16)
        job = stopped_by({faulty: (fault, chance.randrange(20, 300))})
        found = diagnosed(tmp_path / str(number), job, only_active=only_active)
        assert blamed(found) == {faulty}, (fault, faulty)
        assert found.exit_code == (3 if fault is Fault.LOCK_GIL else 4)


def test_two_faulty_ranks_of_different_groups_are_both_named(tmp_path: Path) -> None:
    """Of 16 ranks each waits for another in the end; only these two wait for nobody."""
    for number, faults in enumerate(
        (
            {10: (Fault.LOCK_GIL, 61), 15: (Fault.LOCK_GIL, 62)},
            {12: (Fault.GPU_ERROR, 150), 2: (Fault.GPU_ERROR, 151)},
            {1: (Fault.KILLED, 100), 8: (Fault.KILLED, 100)},
        )
    ):
        assert blamed(diagnosed(tmp_path / str(number), stopped_by(faults), only_active=True)) == faults.keys()


def test_a_rank_that_waits_with_the_others_and_launches_no_more_is_named_too(tmp_path: Path) -> None:
    """Rank 6 has a send under way that nobody takes, as its peers have, since rank 11 keeps the next stage."""
    found = diagnosed(tmp_path, stopped_by({6: (Fault.LOCK_GIL, 35), 11: (Fault.LOCK_GIL, 32)}))
    assert blamed(found) == {6, 11} and "its peers launched more" in of(found, 6).likely


def test_a_device_that_sleeps_is_named_where_kernels_are_timed(tmp_path: Path) -> None:
    job = stopped_by({9: (Fault.GPU_SLEEP, 100)})
    timed = diagnosed(tmp_path / "timed", job, timed=True)
    assert blamed(timed) == {9} and of(timed, 9).kind == "device" and "has not begun" in of(timed, 9).sentence


def test_without_times_of_kernels_the_collective_is_named_and_none_of_its_ranks(tmp_path: Path) -> None:
    job = stopped_by({9: (Fault.GPU_SLEEP, 100)})
    found = diagnosed(tmp_path / "plain", job)
    first = found.verdicts[0]
    assert blamed(found) == set() and 9 in first.waiting and "although" in first.sentence and found.exit_code == 3


def test_a_job_that_does_not_hang_is_well(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, stopped_by({}))
    assert ([one.kind for one in found.verdicts], found.exit_code) == (["well"], 0)


def test_a_verdict_tells_the_group_the_line_and_who_waits_because_of_it(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, stopped_by({11: (Fault.LOCK_GIL, 32)}))
    verdict = of(found, 11)
    assert verdict.sentence == (
        "rank 11 has not arrived: all_to_all #11 (1.18 kB) of group 208 (EXPERT_GROUP);"
        " ranks 0 to 7, 12, 13, 14 and 15 wait because of that"
    )
    assert (verdict.group, verdict.turn, verdict.waiting, verdict.age_ns) == ("208", 11, (8, 9, 10), None)
    assert verdict.where == (
        "after all_reduce #10 (32 B) of group 208 (EXPERT_GROUP), at work/train.py:101 in train_step",
    )
    text = diagnosis_text(found)
    assert "  absent   rank 11: after all_reduce #10" in text
    assert "  rank 15: in recv #4 (2.05 kB) from rank 11 in group 303 (PIPELINE_GROUP), at work/train.py:23" in text


# Small ones -----------------------------------------------------------------------------------------------------------


def small(folder: Path, *dumps: dict[str, Any]) -> Diagnosis:
    return diagnose(read(folder, dict(enumerate(dumps))))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"profiling_name": "nccl:broadcast"}, "is broadcast of 24 B on rank 1, and all_reduce of 24 B on rank 0"),
        ({"input_sizes": [[5]], "output_sizes": [[5]]}, "every rank must give the same number of bytes"),
        ({"input_dtypes": ["Int"], "output_dtypes": ["Int"]}, "every rank must give the same dtype"),
    ],
)
def test_calls_that_differ_and_do_not_end_are_a_mismatch(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    found = small(tmp_path, dump(entry(4)), dump(entry(4, **changed)))
    assert [one.kind for one in found.verdicts] == ["mismatch", "doubt"] and found.exit_code == 3
    assert told in found.verdicts[0].sentence + found.verdicts[0].likely


def test_a_sequence_number_that_damage_made_huge_costs_nothing(tmp_path: Path) -> None:
    found = small(tmp_path, dump(entry(4), entry(2**60)), dump(entry(4, "nccl:broadcast")))
    assert found.verdicts[0].kind == "mismatch" and found.verdicts[0].turn == 4


def test_calls_that_differ_and_ended_are_none(tmp_path: Path) -> None:
    ended = {"state": "completed"}
    assert small(tmp_path, dump(entry(**ended)), dump(entry(op="nccl:reduce", **ended))).exit_code == 0


def test_uneven_all_to_alls_are_no_mismatch(tmp_path: Path) -> None:
    sides = [entry(2, "nccl:all_to_all", input_sizes=[[size]], output_sizes=[[size]]) for size in (3, 90)]
    (first, *_) = small(tmp_path, *map(dump, sides)).verdicts
    assert first.kind == "stuck" and "had not ended on ranks 0 and 1, although both have launched it" in first.sentence


def test_ranks_that_launch_the_calls_of_two_groups_in_different_order_wait_for_each_other(tmp_path: Path) -> None:
    groups = {name: {"name": name, "desc": "", "ranks": "[0, 1]"} for name in ("1", "2")}
    one, other = (entry(5, process_group=(name, "")) for name in ("1", "2"))
    found = small(tmp_path, dump(one, other, pg_config=groups), dump(other, one, pg_config=groups))
    assert found.verdicts[0].sentence == (
        "ranks 0 and 1 wait for each other: rank 0 is in all_reduce #5 (24 B) of group 1 and waits for rank 1;"
        " rank 1 is in all_reduce #5 (24 B) of group 2 and waits for rank 0"
    )
    assert "in different order" in found.verdicts[0].likely


def test_a_receive_that_nobody_sends_to_is_told_with_the_rank_that_does_not_send(tmp_path: Path) -> None:
    waits = entry(0, "nccl:recv 0<-1", p2p_seq_id=3, is_p2p=True)
    found = small(tmp_path, dump(waits), dump(entry(state="completed")))
    first = found.verdicts[0]
    assert (first.kind, first.absent, first.waiting) == ("message", (1,), (0,))
    assert first.sentence == "rank 1 has not sent it: rank 0 is in recv #3 (24 B) from rank 1 in group 0 (default_pg)"


def test_a_rank_without_a_dump_for_whom_nobody_waits_is_only_missing(tmp_path: Path) -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    found = small(tmp_path, *[dump(entry(state="completed"), pg_config=config)] * 2)
    missing = found.verdicts[-2]
    assert (missing.kind, missing.absent) == ("missing", (2,)) and "no dump of rank 2 is here" in missing.sentence


def test_one_dump_of_many_blames_nobody(tmp_path: Path) -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    pair = {"1": {"name": "1", "desc": "pair", "ranks": "[0, 1]"}}
    found = small(tmp_path, dump(entry(5, process_group=("1", "pair")), pg_config=config | pair))
    first = found.verdicts[0]
    assert (first.kind, first.absent) == ("missing", (1, 2, 3)) and "put the dumps of all ranks" in first.sentence
    assert not first.waiting and found.exit_code == 4


def test_a_dump_that_cannot_be_read_is_no_dead_rank(tmp_path: Path) -> None:
    write({0: dump(entry(3))}, tmp_path)
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"\x80\x02}X\x07\x00\x00\x00version")
    job = read_dumps(tmp_path)
    assert job is not None
    assert [(one.kind, one.absent) for one in diagnose(job).verdicts[:2]] == [("stuck", ()), ("doubt", ())]


# Beside the records of a run ------------------------------------------------------------------------------------------


def test_dumps_beside_a_run_add_who_is_to_blame_where_its_records_do_not_say_it(tmp_path: Path) -> None:
    running = rank(0, group(*done(7)), last_at_ns=99 * 10**9), rank(1, group(*done(7)), last_at_ns=99 * 10**9)
    assert verdicts(*running)[1] == 0
    dumps = read(tmp_path, {0: dump(entry(8)), 1: dump(entry(7, state="completed"))})
    found = diagnose(recorded(*running), dumps)
    assert (found.verdicts[0].kind, found.verdicts[0].absent, found.exit_code) == ("stuck", (1,), 3)
    assert found.verdicts[0].sentence.startswith("the dumps of its Flight Recorder tell that rank 1 has not arrived")


def test_dumps_beside_a_run_are_not_told_where_its_records_say_the_same(tmp_path: Path) -> None:
    waiting = rank(0, group(*done(7), call(7))), rank(1, group(*done(7)))
    dumps = read(tmp_path, {0: dump(entry(8)), 1: dump(entry(7, state="completed"))})
    assert diagnose(recorded(*waiting), dumps) == diagnose(recorded(*waiting))
