"""Pipelines of torch.distributed.pipelining on real ranks: every schedule, a slow stage, a bubble of known length."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner

import ddptrace
from ddptrace.analysis.pipeline.digest import pipeline_digests
from ddptrace.analysis.pipeline.forecast import NAMES, PipelinePredictor
from ddptrace.analysis.pipeline.schedule import Computation, computation_of, order_of
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.parallelism import Work
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.cli import main
from ddptrace.render.headline import headline
from ddptrace.render.pipeline import stage_tracks
from ddptrace.render.terminal import summary_text
from ddptrace.render.trace.tracks import by_rank
from tests.launch import torchrun

STEPS = 4
HALVES = (Work.FORWARD, Work.BACKWARD)
THIRDS = (Work.FORWARD, Work.INPUTS, Work.WEIGHTS)
SINGLE = {"ScheduleGPipe": HALVES, "Schedule1F1B": HALVES}
SEVERAL = {"ScheduleInterleaved1F1B": HALVES, "ScheduleInterleavedZeroBubble": THIRDS, "ScheduleZBVZeroBubble": THIRDS}
MICROBATCHES = 4
MS = 1_000_000
FOREIGN = f"foreign:ScheduleInterleaved1F1B:{MICROBATCHES}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pipelines")
    torchrun("pipelined.py", out, 1, *(f"{name}:{MICROBATCHES}" for name in (*SINGLE, *SEVERAL)), FOREIGN)
    return out


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Four stages, of which stage 2 takes four times as long."""
    out = tmp_path_factory.mktemp("four")
    torchrun("pipelined.py", out, 5, "Schedule1F1B:8:2=4", ranks=4)
    return ddptrace.analyze(out / "Schedule1F1B")


@pytest.mark.parametrize("name", [*SINGLE, *SEVERAL])
def test_each_computation_of_each_microbatch_is_there_once(folder: Path, name: str) -> None:
    result = ddptrace.analyze(folder / name)
    stages, works = (2, SINGLE[name]) if name in SINGLE else (4, SEVERAL[name])
    found = Counter((row.turn, row.stage, row.microbatch, row.work) for row in result.pipeline)
    # the zero-bubble schedules compute both parts of some backwards at once
    whole = {key for key in found if key[3] == Work.BACKWARD}
    expected = {
        (turn, stage, microbatch, work)
        for turn in range(STEPS)
        for stage in range(stages)
        for microbatch in range(MICROBATCHES)
        for work in works
        if work not in (Work.INPUTS, Work.WEIGHTS) or (turn, stage, microbatch, Work.BACKWARD) not in whole
    }
    assert set(found) == expected | whole and set(found.values()) == {1}
    assert {row.step for row in result.pipeline} == set(range(STEPS))


@pytest.mark.parametrize("name", [*SINGLE, *SEVERAL])
def test_the_parts_of_each_turn_add_up(folder: Path, name: str) -> None:
    result = ddptrace.analyze(folder / name)
    assert [(row.rank, row.turn) for row in result.bubbles] == [
        (rank, turn) for rank in (0, 1) for turn in range(STEPS)
    ]
    for row in result.bubbles:
        parts = row.compute_ns, row.bubble_ns, row.stage_wait_ns, row.transfer_ns, row.other_ns
        assert sum(parts) == row.window_ns and min(parts) >= 0
        mine = [one for one in result.pipeline if (one.rank, one.turn) == (row.rank, row.turn)]
        assert sum(one.end_at_ns - one.begin_at_ns for one in mine) == row.compute_ns
    for one in result.pipeline:
        assert one.before_ns == (one.peer_wait_ns or 0) + (one.transfer_ns or 0) + (one.other_ns or 0)


@pytest.mark.parametrize("name", ["Schedule1F1B", "ScheduleInterleavedZeroBubble"])
def test_the_exposed_time_of_the_pipeline_is_bubble_wait_and_transfer(folder: Path, name: str) -> None:
    result = ddptrace.analyze(folder / name)
    implied = {(row.rank, row.step): row.bubble_ns for row in result.bubbles}
    rows = [row for row in result.dimensions if row.dimension == "pp"]
    for row in rows:
        parts = [row.peer_wait_ns, row.bubble_ns, row.transfer_ns, row.unmatched_ns]
        assert row.exposed_charged_ns == sum(part or 0 for part in parts)
        assert None not in parts and min(part or 0 for part in parts) >= 0
        assert (row.bubble_ns or 0) <= implied[row.rank, row.step]
        assert row.unmatched_ns == 0  # every message meets its other end
    assert sum(row.bubble_ns or 0 for row in rows) > 0


def test_every_message_of_a_turn_meets_the_one_at_its_other_end(folder: Path) -> None:
    result = ddptrace.analyze(folder / "ScheduleInterleaved1F1B")
    rows = {(row.rank, row.seq): row for row in result.messages if row.turn is not None}
    edges, directions = 3, 2
    assert len(rows) == 2 * STEPS * MICROBATCHES * edges * directions
    for row in rows.values():
        other = rows[row.source if row.rank == row.destination else row.destination, row.other_seq or 0]
        assert {row.op, other.op} == {"send", "recv"} and other.other_seq == row.seq
        assert (row.phase, row.microbatch, row.nbytes) == (other.phase, other.microbatch, other.nbytes)
        assert row.other_arrived_at_ns == other.arrived_at_ns == other.launch_at_ns


def test_stages_are_units_with_their_parameters(folder: Path) -> None:
    result = ddptrace.analyze(folder / "ScheduleInterleaved1F1B")
    rows = [row for row in result.units if row.kind == "pipeline" and row.microbatch is not None]
    assert {(row.dimension, row.whole_nbytes) for row in rows} == {("pp", 4 * (8 * 8 + 8))}
    assert {row.role for row in rows} == {"send", "recv"} and {row.phase for row in rows} == {"forward", "backward"}


def test_a_file_of_torchs_profiler_tells_the_messages_of_each_stage(folder: Path) -> None:
    """To which rank they went, Gloo does not tell the profiler."""
    ours, theirs = (
        Counter(
            (row.rank, row.name, row.role, row.phase, row.microbatch, row.dimension)
            for row in ddptrace.analyze(folder / name).units
            if row.kind == "pipeline" and row.microbatch is not None
        )
        for name in ("ScheduleInterleaved1F1B", "foreign")
    )
    assert theirs == ours and sum(ours.values()) == 2 * STEPS * MICROBATCHES * 3 * 2


def test_files_of_torchs_profiler_tell_the_schedule_and_where_the_time_of_each_rank_goes(folder: Path) -> None:
    ours, theirs = (ddptrace.analyze(folder / name) for name in ("ScheduleInterleaved1F1B", "foreign"))
    computed = {(row.rank, row.turn, row.stage, row.microbatch, row.work): row for row in theirs.pipeline}
    assert computed.keys() == {(row.rank, row.turn, row.stage, row.microbatch, row.work) for row in ours.pipeline}
    for row in theirs.pipeline:  # each begins when its input is there
        assert row.end_at_ns - row.begin_at_ns >= MS * (1 if row.work == Work.FORWARD else 2)
        way = -1 if row.work == Work.FORWARD else 1
        source = computed.get((1 - row.rank, row.turn, row.stage + way, row.microbatch, row.work))
        assert source is None or source.end_at_ns <= row.begin_at_ns
    assert [(row.rank, row.turn) for row in theirs.bubbles] == [(r, turn) for r in range(2) for turn in range(STEPS)]
    for row in theirs.bubbles:
        parts = row.compute_ns, row.bubble_ns, row.stage_wait_ns, row.transfer_ns, row.other_ns
        assert row.window_ns == sum(parts) and min(parts) >= 0
        assert row.bubble_ns <= row.ideal_bubble_ns
    assert sum(row.bubble_ns for row in theirs.bubbles) > 0
    assert "4 stages" in summary_text(theirs)


def test_a_slow_stage_is_blamed_and_not_called_bubble(four: Result) -> None:
    (digest,) = pipeline_digests(four)
    assert digest.slow is not None and (digest.slow.stage, digest.slow.rank) == (2, 2)
    slow = next(finding for finding in four.findings if finding.code == "slow-stage")
    assert slow.message.startswith("Stage 2 of the pipeline (rank 2) computes")
    assert four.savings[0].finding == "slow-stage" and four.savings[0].where == "stage 2"
    waits = {rank.rank: rank.stage_wait_ns for rank in digest.ranks}
    assert all(waits[rank] > 2 * digest.ideal_bubble_ns for rank in (0, 1, 3)), digest
    assert all(rank.bubble_ns <= digest.ideal_bubble_ns for rank in digest.ranks)


def test_the_terminal_shows_where_the_time_of_each_rank_goes(four: Result) -> None:
    said = summary_text(four)
    assert "Pipeline  Schedule1F1B · 4 stages · 8 microbatches · turn" in said
    assert "could be won if stage 2 of the pipeline were as fast as a typical one" in " ".join(said.split())


def test_the_trace_has_a_track_for_each_stage(four: Result) -> None:
    for rows in by_rank(four):
        (track,) = stage_tracks(rows.pipeline)
        assert track.name == f"pipeline stage {rows.rank}"
        assert Counter(one.name for one in track.slices) == {
            f"{work} {microbatch}": STEPS for work in HALVES for microbatch in range(8)
        }


@pytest.mark.parametrize("name", SINGLE)
def test_a_bubble_is_as_long_as_the_schedule_implies_of_the_times_that_stages_took(folder: Path, name: str) -> None:
    result = ddptrace.analyze(folder / name)
    for row in result.bubbles:
        mine = [one for one in result.pipeline if one.turn == row.turn]
        spans = {
            (stage, work): median(
                one.end_at_ns - one.begin_at_ns for one in mine if (one.stage, one.work) == (stage, work)
            )
            for stage in (0, 1)
            for work in HALVES
        }
        implied = sum(min(spans[0, work], spans[1, work]) for work in HALVES)
        assert row.ideal_bubble_ns == pytest.approx(implied, abs=2)
        assert row.bubble_ns <= row.ideal_bubble_ns


@pytest.mark.alone
def test_a_bubble_is_as_long_as_planted(tmp_path: Path) -> None:
    torchrun("pipelined.py", tmp_path, 100, "ScheduleGPipe:3")
    result = ddptrace.analyze(tmp_path / "ScheduleGPipe")
    for rank in (0, 1):
        found = min(row.bubble_ns for row in result.bubbles if row.rank == rank and row.turn)
        assert found == pytest.approx(300e6, rel=0.01)


# Predicted with other schedules ---------------------------------------------------------------------------------------


def computed(result: Result, turn: int) -> list[list[Computation]]:
    """What each rank computed in one turn, in order."""
    rows = sorted((row for row in result.pipeline if row.turn == turn), key=lambda row: row.begin_at_ns)
    ranks = sorted({row.rank for row in rows})
    return [[computation_of(row) for row in rows if row.rank == rank] for rank in ranks]


@pytest.mark.parametrize("name", NAMES)
def test_a_known_schedule_has_the_order_in_which_torch_runs_it(folder: Path, name: str) -> None:
    expected = [order_of(NAMES[name], rank, 2, MICROBATCHES) for rank in range(2)]
    assert computed(ddptrace.analyze(folder / name), 1) == expected


def test_a_known_schedule_has_that_order_on_four_ranks_too(four: Result) -> None:
    assert computed(four, 1) == [order_of("1f1b", rank, 4, 8) for rank in range(4)]


def test_one_recorded_pipeline_predicts_others(four: Result) -> None:
    """Stage 2 takes four times as long and has no pause in a turn: 8 of its microbatches more cost 8 of its times."""
    predictor = PipelinePredictor(four)
    more = predictor.predict("more", Setting(microbatches=16))
    assert more.step_ns is not None and more.gain_ratio is not None
    slow = [row for row in four.pipeline if row.stage == 2 and row.turn]
    each = sum(median(row.end_at_ns - row.begin_at_ns for row in slow if row.work == work) for work in HALVES)
    assert more.step_ns - predictor.recorded_ns >= 7.2 * each
    assert 0 < more.gain_ratio < 0.5
    merged = predictor.predict("interleaved", Setting(schedule="interleaved"))
    assert merged.step_ns is not None and any("equally long" in line for line in merged.basis)


@pytest.mark.parametrize(
    ("setting", "refusal"),
    [
        (Setting(bandwidth=2.0), "only other schedules"),
        (Setting(schedule="interleaved", microbatches=9), "9 microbatches cannot be interleaved over 4 ranks"),
    ],
)
def test_what_a_pipeline_does_not_tell_is_refused(four: Result, setting: Setting, refusal: str) -> None:
    told = PipelinePredictor(four).predict("asked", setting)
    assert told.refusal is not None and refusal in told.refusal and told.step_ns is None


def test_an_order_that_is_not_known_has_to_be_named(folder: Path) -> None:
    predictor = PipelinePredictor(ddptrace.analyze(folder / "ScheduleZBVZeroBubble"))
    told = predictor.predict("more", Setting(microbatches=8))
    assert told.refusal is not None and "name another with --schedule" in told.refusal
    named = predictor.predict("named", Setting(schedule="1f1b", microbatches=8))
    assert named.step_ns is not None and any("two parts are put together" in line for line in named.basis)


def test_advice_on_a_pipeline_begins_as_analyze_does(folder: Path) -> None:
    run = folder / "ScheduleGPipe"
    result = ddptrace.analyze(run)
    said = CliRunner().invoke(main, ["advise", str(run)])
    assert said.exit_code == 0, said.output
    assert " ".join(headline(result, summarize(result)).text.split()) in " ".join(said.output.split())
    told = ddptrace.whatif(run)
    assert told.model == "pipeline" and told.backwards == MICROBATCHES
    assert [row.name for row in told.predictions] == [
        "schedule 1f1b", "schedule interleaved", "8 microbatches", "16 microbatches",
    ]  # fmt: skip
