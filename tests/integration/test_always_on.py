"""A trace that is left on: disk and memory bounded over real trainings, sampled steps, all of it told."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import ddptrace
from ddptrace.load.run import read_run
from ddptrace.record import RecordReader
from ddptrace.schema import Kind, Phase
from ddptrace.trace_options import LEAST_NBYTES
from tests.launch import environment, torchrun
from tests.soak.watch import WARM_RATIO, Soaked, soak

STEPS = 1300
ALONE = 30
EVERY = 50
SAMPLED_STEPS = 210


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> Soaked:
    return soak(tmp_path_factory.mktemp("soaked") / "run", steps=STEPS, nbytes=LEAST_NBYTES, look_every=50, alone=ALONE)


def test_the_disk_is_never_above_its_bound_and_the_newest_steps_are_left(soaked: Soaked) -> None:
    assert soaked.disk_nbytes <= LEAST_NBYTES
    for first, last, count in soaked.steps:
        assert 0 < first < last == STEPS - 1
        assert count == last + 1 - first
    assert "records-let-go" in soaked.findings


def test_every_step_that_is_left_has_all_its_collectives_and_both_ranks_match(soaked: Soaked) -> None:
    assert soaked.uneven == 0
    common = STEPS - max(first for first, _, _ in soaked.steps)
    # All buckets end in a completion that is stamped; the loop's own small all-reduce leaves only the host's wait.
    assert soaked.matches >= (soaked.calls_per_step - 1 - ALONE) * (common - 1)
    assert "match-refused" not in soaked.findings
    assert "bucket-layout-unknown" not in soaked.findings


def test_memory_does_not_grow_with_the_steps(soaked: Soaked) -> None:
    warm = STEPS * (1 - WARM_RATIO)
    assert all(drift < 2_000_000 for drift in soaked.drift_nbytes), soaked.looks
    assert all(drift < warm / 2 for drift in soaked.drift_blocks), soaked.looks  # one object in every other step


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sampled") / "run"
    torchrun("soaked.py", run, SAMPLED_STEPS, 100_000_000, "--every", EVERY)
    return run


def recorded_steps() -> set[int]:
    return {0, 1, 2, *range(0, SAMPLED_STEPS, EVERY)}


def test_one_step_in_so_many_is_recorded_whole_and_of_the_others_the_time(sampled: Path) -> None:
    result = ddptrace.analyze(sampled)
    for rank in range(2):
        assert {row.step for row in result.steps if row.rank == rank} == recorded_steps()
        partial = {row.step for row in result.partial_steps if row.rank == rank}
        assert partial == set(range(SAMPLED_STEPS)) - recorded_steps()
    wanted = json.loads(Path(f"{sampled}.rank-0.json").read_text())["calls_per_step"]
    for rank in range(2):
        for step in recorded_steps() - {0, 1}:
            calls = [row for row in result.collectives if (row.rank, row.step, row.part) == (rank, step, 0)]
            assert len(calls) == wanted, (rank, step)


def test_steps_that_are_not_recorded_leave_nothing_but_their_mark(sampled: Path) -> None:
    records = RecordReader(sampled / "rank-00000").read()
    phases = records.events[records.events["kind"] == Kind.PHASE]["flags"].tolist()
    assert phases.count(Phase.BACKWARD) == len(recorded_steps())
    assert phases.count(Phase.FORWARD) <= len(recorded_steps())
    assert len(read_run(sampled).ranks[0].ready) == len(recorded_steps())
    files = sum(path.stat().st_size for path in (sampled / "rank-00000").glob("records-*.bin"))
    assert files < 64 * (SAMPLED_STEPS * 3 + 60 * len(recorded_steps()))


def test_ordinals_of_backwards_count_those_that_were_not_recorded(sampled: Path) -> None:
    ordinals = [mark.backward for mark in read_run(sampled).ranks[1].phases if mark.backward is not None]
    assert ordinals == sorted(recorded_steps())


def test_sampled_ranks_are_matched_in_the_steps_that_both_recorded(sampled: Path) -> None:
    result = ddptrace.analyze(sampled)
    steps = {(row.rank, row.seq): row.step for row in result.collectives}
    assert result.matches
    for row in result.matches:
        assert len({steps[key] for key in zip(row.ranks, row.seqs, strict=True)}) == 1
    assert {"steps-not-recorded"} <= {one.code for one in result.findings}
    assert {"match-refused", "bucket-layout-unknown"} & {one.code for one in result.findings} == set()


def test_the_manifest_tells_what_is_kept(sampled: Path) -> None:
    manifest = json.loads((sampled / "manifest.json").read_text())
    assert manifest["keep"] == {"nbytes": 100_000_000, "steps": None, "every": EVERY}


def whole_steps(run: Path) -> list[int]:
    return [step.ordinal for step in read_run(run).ranks[0].steps]


def train_alone(steps: int, *, said: ddptrace.trace | None = None) -> None:
    model = nn.Linear(4, 4)
    update = torch.optim.SGD(model.parameters(), lr=0.1).step
    for _ in range(steps):
        model(torch.randn(2, 4)).sum().backward()
        update()
        if said is not None:
            said.step()


BY_HAND = """
import sys, torch, ddptrace
model = torch.nn.Linear(4, 4)
with ddptrace.trace(sys.argv[1], keep=ddptrace.Keep(every=10)):
    for _ in range(25):
        model.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
"""


def train_by_hand(run: Path) -> None:
    """In a process of its own: in this one, some test has made an optimizer."""
    subprocess.run([sys.executable, "-c", BY_HAND, run], env=environment(), check=True, capture_output=True)


@pytest.mark.parametrize("ended_by", ["backward", "optimizer", "said"])
def test_every_kind_of_step_is_sampled(tmp_path: Path, ended_by: str) -> None:
    if ended_by == "backward":
        train_by_hand(tmp_path / "run")
    else:
        with ddptrace.trace(tmp_path / "run", keep=ddptrace.Keep(every=10)) as trace:
            train_alone(25, said=trace if ended_by == "said" else None)
    assert whole_steps(tmp_path / "run") == [0, 1, 2, 10, 20]
    partial = read_run(tmp_path / "run").ranks[0].partial_steps
    assert [step.ordinal for step in partial] == [n for n in range(25) if n not in (0, 1, 2, 10, 20)]
    assert {step.ended_by.name.lower() for step in partial} == {ended_by}


def test_the_first_steps_are_recorded_whole_under_gradient_accumulation_too(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddptrace.trace(tmp_path / "run", keep=ddptrace.Keep(every=10)):
        for backward in range(8 * 12):
            model(torch.randn(2, 4)).sum().backward()
            if backward % 8 == 7:
                optimizer.step()
    assert whole_steps(tmp_path / "run") == [0, 1, 2, 10]
    backwards = [mark for mark in read_run(tmp_path / "run").ranks[0].phases if mark.phase is Phase.BACKWARD]
    assert len(backwards) == 8 * 4


def test_steps_under_a_profiler_are_recorded_whatever_is_sampled(tmp_path: Path) -> None:
    schedule = torch.profiler.schedule(wait=5, warmup=1, active=3, repeat=1)
    with ddptrace.trace(tmp_path / "run", profile=schedule, keep=ddptrace.Keep(every=10)):
        train_alone(25)
    assert whole_steps(tmp_path / "run") == [0, 1, 2, 6, 7, 8, 10, 20]
    assert {row.step for row in ddptrace.analyze(tmp_path / "run").steps if row.profiled} == {6, 7, 8}


def test_leaving_a_trace_does_not_wait_for_a_store_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddptrace.capture import session

    answer = threading.Event()
    monkeypatch.setattr(session, "SETTLED_S", 0.2)
    with ddptrace.trace(tmp_path / "run"):
        assert session._current is not None
        monkeypatch.setattr(session._current.claim, "agree", lambda note: answer.wait(60))
        begin = time.monotonic()
    assert time.monotonic() - begin < 20
    answer.set()
    (finding,) = [one for one in ddptrace.analyze(tmp_path / "run").findings if one.code == "not-settled"]
    assert "The ranks' store gave no answer within 0.2 s" in finding.message


def test_what_does_not_say_what_to_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ddptrace.TraceStateError, match=r"keep=64 is not a ddptrace\.Keep; give ddptrace\.Keep"):
        ddptrace.trace(tmp_path / "run", keep=64)  # type: ignore[arg-type]
