"""Planted causes of lost time on the device: the verdict names them, with the time that the ledger gives them."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

import ddptrace
from ddptrace.analysis import savings
from ddptrace.analysis.device.idle import AT_WORK
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import WORTH_RATIO, measured_steps, summarize
from ddptrace.analysis.timeline.forecast import TimelinePredictor
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.predictor import analyze_with_forecast
from ddptrace.render.headline import headline
from tests.device.conftest import RunProgram
from tests.device.device import HERE
from tests.device.test_device import WORK, Json, parts, parts_told, told_by
from tests.device.test_events import Recorded, ends_by_marks, most_off_ns
from tests.device.truth import PARTS

by_ledger = pytest.mark.skipif(not HERE.has_ledger, reason="held against the ledger")
pytestmark = pytest.mark.alone  # beside other work the device starves, and each rank is late, now and then

ACTIVE = {"late": 12}  # steps in the profiler's window
FEW_ACTIVE = 6  # in that of the others
PLANTED_NS, OWN_WORK_NS = 100_000_000, 50_000_000
LATE_RATIO = 0.9 if HERE.has_ledger else 0.8
"""Of what is planted, that a late rank costs: less where ranks take turns on one GPU, as the one that would be last
without it is late as well, by the kernels of the others."""
EVENTS_NS = 1_000_000  # by which a step's events may be off: of their clock, and where its device goes on late
STILL = "host-stands-still"
IDLE_CODES = {kind.code for kind in savings.IDLE_KINDS.values()} | {"exposed-copies"}


@dataclass(frozen=True, slots=True)
class Planted:
    """What is planted, and the verdict that is true of it."""

    cause: str  # of the largest saving
    code: str  # of the first advice
    least_ns: int  # of a step, that the cause costs
    absent: set[str]  # codes that would be wrong
    ranks: int = 1
    where: str = "rank 0"


PLANTED = {
    "sleep": Planted(AT_WORK, "launch-bound", PLANTED_NS, IDLE_CODES - {"launch-bound"}),
    "item": Planted("synchronize", "host-synchronizes", OWN_WORK_NS, {"blocking-copies", "data-bound"}),
    "copy": Planted("copy", "blocking-copies", OWN_WORK_NS, {"host-synchronizes", "data-bound"}),
    "loader": Planted("data", "data-bound", PLANTED_NS, {"host-synchronizes", "blocking-copies"}),
    "launches": Planted(AT_WORK, "launch-bound", 1, IDLE_CODES - {"launch-bound", "idle-while-queued"}),
    "late": Planted(savings.LATE, "late-rank", 9 * PLANTED_NS // 10, {"queued", "exposed-bucket"}, 2, "rank 1"),
}
"""By the name of the step in `programs/planted.py`."""


@pytest.fixture(scope="module")
def planted(on_any_device: RunProgram, tmp_path_factory: pytest.TempPathFactory) -> functools.partial[Path]:
    """Call `planted(RECORDER, CAUSE)`: the folder that the program left. Each runs once."""
    made: dict[tuple[str, str], Path] = {}

    def run(recorder: str, cause: str) -> Path:
        if (recorder, cause) not in made:
            out = tmp_path_factory.mktemp(f"{recorder}-{cause}")
            on_any_device("planted.py", out, recorder, cause, ranks=ranks_of(recorder, cause))
            made[recorder, cause] = out
        return made[recorder, cause]

    return functools.partial(run)


def ranks_of(recorder: str, cause: str) -> int:
    if cause == "late":
        return 4 if recorder == "events" else 2
    return 2 if cause in OF_BUCKETS else 1


@functools.cache
def analyzed(out: Path, recorder: str) -> Result:
    return ddptrace.analyze(sorted(out.glob("rank-*.json")) if recorder == "profiler" else out / "run")


def advice(result: Result) -> list[str]:
    return [finding.code for finding in result.findings if finding.kind.is_advice]


@pytest.mark.parametrize("recorder", ["profiler", "trace"])
@pytest.mark.parametrize("cause", PLANTED)
def test_the_planted_cause_is_the_headline_and_the_first_advice(
    planted: functools.partial[Path], recorder: str, cause: str
) -> None:
    true, result = PLANTED[cause], analyzed(planted(recorder, cause), recorder)
    largest = result.savings[0]
    assert largest.cause == true.cause and largest.cost_ns >= true.least_ns
    shown = headline(result, summarize(result))
    assert not shown.calm and shown.first_step
    first = next(finding for finding in result.findings if finding.kind.is_advice)
    assert first.where == true.where
    assert first.code == true.code == largest.finding
    assert not true.absent & set(advice(result))


@pytest.mark.parametrize("recorder", ["profiler", "trace"])
@pytest.mark.parametrize("cause", [*PLANTED, "ahead"])
def test_what_held_the_host_adds_up_to_the_idle_time_of_every_step(
    planted: functools.partial[Path], recorder: str, cause: str
) -> None:
    result = analyzed(planted(recorder, cause), recorder)
    told: defaultdict[tuple[int, int | None], int] = defaultdict(int)
    for row in result.idle:
        told[row.rank, row.step] += row.idle_ns
    idle = {(row.rank, row.step): row.idle_ns for row in result.steps if row.profiled}
    assert len(idle) >= (active(cause) - 1) * len(result.ranks)
    assert {key: told[key] for key in idle} == idle


@by_ledger
@pytest.mark.parametrize("cause", [*PLANTED, "ahead"])
def test_the_parts_of_a_step_are_the_ledgers(planted: functools.partial[Path], cause: str) -> None:
    out = planted("profiler", cause)
    result = analyzed(out, "profiler")
    for rank in {row.rank for row in result.steps}:
        windows = windows_ns(out, rank, cause)
        work = worked(out, rank)
        rows = [row for row in result.steps if row.rank == rank]
        assert len(rows) == active(cause)
        assert [parts_told(row) for row in rows[1:]] == [parts(work, *window) for window in windows]


@by_ledger
@pytest.mark.parametrize("cause", ["sleep", "loader", "item", "copy"])
def test_the_cause_has_the_idle_time_in_which_the_host_was_in_what_was_planted(
    planted: functools.partial[Path], cause: str
) -> None:
    """By the ledger and the program's own clock, which may stand still between its mark and what it marks."""
    out = planted("profiler", cause)
    result = analyzed(out, "profiler")
    typical = [row.step for row in measured_steps(result.steps)[0]]
    order = [row.step for row in result.steps]
    windows = dict(zip(order[1:], windows_ns(out, 0, cause), strict=True))
    work, held = worked(out, 0), told_by(out, 0)["planted_ns"]
    judged = [step for step in typical if step in windows]
    expected = [idle_within(work, windows[step], held) for step in judged]
    causes = {"sleep": {"nothing"}, "loader": {"data"}, "item": {"synchronize"}, "copy": {"copy"}}[cause]
    told = [sum(row.idle_ns for row in result.idle if row.step == step and row.cause in causes) for step in judged]
    assert fmean(told) >= 0.9 * fmean(expected) >= 0.8 * PLANTED[cause].least_ns


@pytest.mark.parametrize("recorder", ["profiler", "trace"])
def test_a_host_that_is_ahead_of_a_busy_device_is_not_to_blame(planted: functools.partial[Path], recorder: str) -> None:
    """It sleeps as long as in `item`, and waits for nothing."""
    result = analyzed(planted(recorder, "ahead"), recorder)
    assert not (IDLE_CODES - {"launch-bound", "idle-while-queued"}) & set(advice(result))
    assert all(row.cost_ratio < WORTH_RATIO for row in result.savings)
    summary = summarize(result)
    assert headline(result, summary).calm
    assert summary.window_ns is not None and summary.window_ns >= 4 * 40_000_000


# Predicted without the cause ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorder", ["profiler", "trace"])
@pytest.mark.parametrize(
    ("cause", "setting", "least_ns"),
    [
        ("loader", Setting(free_data=True), 9 * PLANTED_NS // 10),
        ("sleep", Setting(host=2.0), 9 * PLANTED_NS // 20),
        ("item", Setting(host=2.0), 9 * OWN_WORK_NS // 20),
        ("copy", Setting(host=2.0), 9 * OWN_WORK_NS // 20),
    ],
)
def test_a_step_is_predicted_without_the_cause(
    planted: functools.partial[Path], recorder: str, cause: str, setting: Setting, least_ns: int
) -> None:
    """Without more of it than there is."""
    predictor = TimelinePredictor(analyzed(planted(recorder, cause), recorder))
    found = predictor.predict(cause, setting)
    assert found.step_ns is not None
    assert least_ns <= predictor.recorded_ns - found.step_ns <= predictor.recorded_ns


def test_the_report_predicts_what_whatif_does(planted: functools.partial[Path]) -> None:
    run = planted("trace", "sleep") / "run"
    result, forecast = analyze_with_forecast(run)
    assert forecast.of_device is not None
    (limit,) = [limit for limit in forecast.of_device.limits if limit.saving.cause == AT_WORK]
    assert limit.remedy == TimelinePredictor(result).predict("host twice as fast", Setting(host=2.0))


@pytest.mark.parametrize("recorder", ["profiler", "trace"])
def test_a_host_that_is_ahead_wins_nothing_by_being_faster(planted: functools.partial[Path], recorder: str) -> None:
    """The device has four times 40 ms to do in each step."""
    predictor = TimelinePredictor(analyzed(planted(recorder, "ahead"), recorder))
    found = predictor.predict("faster", Setting(host=2.0))
    assert found.gain_ratio is not None and found.gain_ratio < 0.05


@pytest.mark.alone
def test_the_other_ranks_steps_are_predicted_without_the_late_rank(planted: functools.partial[Path]) -> None:
    predictor = TimelinePredictor(analyzed(planted("trace", "late"), "trace"))
    found = predictor.predict("on time", Setting(even=1))
    assert found.step_ns is not None
    assert predictor.recorded_ns - found.step_ns >= 8 * PLANTED_NS // 10
    assert (predictor.predict("other", Setting(even=0)).gain_ratio or 0.0) < 0.1


# Without a profiler, by events ----------------------------------------------------------------------------------------


TIMED = ["sleep", "loader", "item", "ahead", "launches", "beside", "late", "slow", "far_ahead"]


@by_ledger
@pytest.mark.parametrize("cause", TIMED)
def test_events_tell_each_steps_parts_within_what_they_say_is_unsure(
    planted: functools.partial[Path], cause: str
) -> None:
    recorded = Recorded(planted("events", cause), range(ranks_of("events", cause)))
    for rank in recorded.ranks:
        rows = [row for row in recorded.result.steps if row.rank == rank]
        windows = pairwise(ends_by_marks(recorded, rank, rows))
        judged = [pair for pair in zip(rows[1:], windows, strict=True) if pair[0].is_seen]
        assert len(judged) >= FEW_ACTIVE
        for row, (begin, end) in judged[2:]:
            true, most = parts(recorded.work(rank), begin, end), most_off_ns(recorded, rank, row, begin, end)
            assert all(abs((getattr(row, part) or 0) - true[part]) <= most for part in PARTS), (row, true, most)


@pytest.mark.parametrize("recorder", ["events", "ends"])
def test_events_name_the_rank_that_is_late(planted: functools.partial[Path], recorder: str) -> None:
    result = analyzed(planted(recorder, "late"), recorder)
    (suspect,) = result.suspects
    assert suspect.rank == 1 and suspect.phase == "forward" and suspect.cost_ns >= LATE_RATIO * PLANTED_NS
    assert result.savings[0].cause == savings.LATE and result.savings[0].where == "rank 1"
    assert "rank 1" in headline(result, summarize(result)).words
    assert advice(result)[0] == "late-rank" and "exposed-bucket" not in advice(result)


@pytest.mark.parametrize(("cause", "held", "code"), [("sleep", "still", STILL), ("loader", "data", "data-bound")])
def test_events_prove_that_the_device_waits_while_the_host_launches_nothing(
    planted: functools.partial[Path], cause: str, held: str, code: str
) -> None:
    """Most of what was planted is proved, and no more than the ledger's idle time."""
    recorded = Recorded(planted("events", cause), range(1))
    result = recorded.result
    largest = result.savings[0]
    assert (largest.cause, largest.finding, advice(result)) == (held, code, [code])
    assert largest.cost_ns >= PLANTED_NS / 2
    if not HERE.has_ledger:
        return
    rows = list(result.steps)
    proved = {row.step: sum(one.idle_ns for one in result.idle if one.step == row.step) for row in rows}
    for row, (begin, end) in list(zip(rows[1:], pairwise(ends_by_marks(recorded, 0, rows)), strict=True))[2:]:
        assert proved[row.step] <= parts(recorded.work(0), begin, end)["idle_ns"] + EVENTS_NS
        assert row.idle_ns is not None and proved[row.step] <= row.idle_ns


def test_events_name_no_cause_where_the_host_waits_for_the_device_first(planted: functools.partial[Path]) -> None:
    """It then sleeps for longer than the device has to do: the device is idle while it stands still."""
    result = analyzed(planted("events", "item"), "events")
    assert {row.cause for row in result.savings} == {"still"} and result.savings[0].cost_ns >= OWN_WORK_NS / 4
    assert set(advice(result)) == {STILL}


@pytest.mark.parametrize("cause", ["launches"])
def test_a_device_that_may_wait_for_the_host_is_said_to_need_a_profiler(
    planted: functools.partial[Path], cause: str
) -> None:
    """Events do not tell for how long; nothing is said to be computing, or idle, that may not be."""
    result = analyzed(planted("events", cause), "events")
    shown = headline(result, summarize(result))
    assert "the device computes or waits for the host" in shown.words and "profiler window" in shown.first_step
    assert "device-caught-up" in {finding.code for finding in result.findings}
    assert not IDLE_CODES & set(advice(result))


def test_events_blame_no_host_that_is_ahead(planted: functools.partial[Path]) -> None:
    result = analyzed(planted("events", "ahead"), "events")
    assert headline(result, summarize(result)).calm and not advice(result)


# Buckets --------------------------------------------------------------------------------------------------------------


OF_BUCKETS = ("slow", "far_ahead")
COLLECTIVES_NS = {"slow": 4 * 25_000_000, "far_ahead": 4 * 6_000_000}


@pytest.mark.parametrize("recorder", ["trace", "events"])
def test_communication_that_is_longer_than_compute_is_named(planted: functools.partial[Path], recorder: str) -> None:
    result = analyzed(planted(recorder, "slow"), recorder)
    largest, shown = result.savings[0], headline(result, summarize(result))
    typical = [row.comm_ns or 0 for row in measured_steps(result.steps)[0]]
    least_ns = COLLECTIVES_NS["slow"] // 2 if HERE.has_ledger else min(typical) // 4
    assert largest.cause == savings.EXPOSED and largest.cost_ns >= least_ns
    assert "more than computation could hide" in shown.words
    (exposed,) = [finding for finding in result.findings if finding.code == "exposed-bucket"]
    assert "so no bucket size can hide it all" in exposed.message


@pytest.mark.skipif(not HERE.has_ledger, reason="its kernels and collectives have a least length")
@pytest.mark.parametrize("recorder", ["trace", "events"])
def test_no_queue_is_blamed_for_a_bucket_that_the_host_launched_long_before_its_turn(
    planted: functools.partial[Path], recorder: str
) -> None:
    """The device is steps behind: the last bucket begins once its gradients are there, and nothing held it."""
    result = analyzed(planted(recorder, "far_ahead"), recorder)
    worst = summarize(result).worst
    assert worst is not None and worst.is_last and (worst.queue_ns or 0) > 100_000_000
    (exposed,) = [finding for finding in result.findings if finding.code == "exposed-bucket"]
    assert "begins when backward has little left to compute" in exposed.message
    assert "queue" not in exposed.message and "after its launch" not in exposed.message
    assert "waited-on-device" not in {finding.code for finding in result.findings}


def test_long_stalls_are_told_from_many_short_gaps(planted: functools.partial[Path]) -> None:
    stalled, starved = (analyzed(planted("profiler", cause), "profiler").savings[0] for cause in ("sleep", "launches"))
    assert stalled.half_gap_ns is not None and stalled.half_gap_ns >= PLANTED_NS
    assert starved.half_gap_ns is not None and starved.half_gap_ns < PLANTED_NS / 4
    assert starved.cost_ratio > 0.5


def active(cause: str) -> int:
    return ACTIVE.get(cause, FEW_ACTIVE)


def worked(out: Path, rank: int) -> list[Json]:
    return [entry for entry in told_by(out, rank)["ledger"] if entry["kind"] in WORK]


def windows_ns(out: Path, rank: int, cause: str) -> list[tuple[int, int]]:
    """Of every recorded step but the first. On the device a step is over with the last work launched in it."""
    ends = told_by(out, rank)["ends_ns"][-active(cause) :]
    over = [max(one["end_ns"] for one in worked(out, rank) if one["launched_ns"] < end) for end in ends]
    return list(pairwise(over))


def idle_within(work: list[Json], window: tuple[int, int], held: list[tuple[int, int]]) -> int:
    """How long the device had nothing to do in the window while the host was in what was planted."""
    clipped = [(max(begin, window[0]), min(end, window[1])) for begin, end in held]
    return sum(parts(work, begin, end)["idle_ns"] for begin, end in clipped if begin < end)
