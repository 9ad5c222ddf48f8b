"""Runs that were recorded on a device by events alone, as they are analyzed, followed, told as telemetry and compared.

`tests/recorded/on_a_device` holds two, of two ranks each: 14 steps of four layers, each in a bucket, by
`tests/device/programs/planted.py` on the test device. A kernel takes 2 ms, a collective 4 ms in `fast`, 24 in `slow`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.live.batch import RankBatch
from ddptrace.live.rank_follower import HeldRecords, RankFollower
from ddptrace.live.run_folders import read_identity
from ddptrace.live.watched import Watched
from ddptrace.record import RecordReader
from ddptrace.render.diff.terminal import diff_text
from ddptrace.render.headline import headline
from ddptrace.schema import RECORD_NBYTES, Evidence, Kind
from ddptrace.telemetry.metrics.totals import Totals
from ddptrace.telemetry.rows import of_batch, of_result
from ddptrace.telemetry.spans.trees import Node, trees
from tests.launch import ROOT
from tests.sums import told_by

RECORDED = ROOT / "tests" / "recorded" / "on_a_device"
RANKS, STEPS, BUCKETS = 2, 14, 4
TRANSFER_NS = {"fast": 4_000_000, "slow": 24_000_000}
TIMES = ("window_ns", "compute_ns", "hidden_ns", "exposed_comm_ns", "idle_ns", "comm_ns")
RECORDS = 40  # a few steps
CLOCK_NS = 50_000  # by which instants of the device may move as more of its clock is known


@pytest.fixture(params=["fast", "slow"])
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def run(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(RECORDED / name, tmp_path / name))


def grown(run: Path, rank: int) -> Iterator[bool]:
    """Let the rank's records come to the disk a few at a time; true once all are there."""
    (path,) = (run / f"rank-{rank:05d}").glob("records-*.bin")
    whole = path.read_bytes()
    for end in range(0, len(whole), RECORDS * RECORD_NBYTES):
        path.write_bytes(whole[:end])
        yield False
    path.write_bytes(whole)
    yield True


def followed(run: Path, rank: int) -> list[RankBatch]:
    follower, batches = RankFollower(run / f"rank-{rank:05d}"), []
    identity = read_identity(follower.folder, final=True)
    assert identity is not None
    for is_whole in grown(run, rank):
        follower.read(live=not is_whole)
        while (batch := follower.next_batch(identity, final=is_whole)) is not None:
            batches.append(batch)
    return batches


def test_every_step_but_the_first_has_its_parts_by_events(run: Path, name: str) -> None:
    result = ddptrace.analyze(run)
    steps = [row for row in result.steps if row.step > 0]
    assert len(steps) == RANKS * (STEPS - 1) and {row.evidence for row in steps} == {Evidence.EVENT}
    for row in steps:
        told = {name: getattr(row, name) for name in TIMES}
        assert told["compute_ns"] + told["exposed_comm_ns"] + told["idle_ns"] == told["window_ns"]
        assert told["hidden_ns"] + told["exposed_comm_ns"] == told["comm_ns"]
        assert 0 <= row.unsure_ns <= row.window_ns  # type: ignore[operator]
    buckets = [row for row in result.buckets if row.step]
    assert len(buckets) == RANKS * (STEPS - 1) * BUCKETS
    assert all(row.comm_ns is not None and row.comm_ns >= TRANSFER_NS[name] for row in buckets)


def test_the_verdict_names_what_is_exposed(run: Path, name: str) -> None:
    result = ddptrace.analyze(run)
    summary = summarize(result)
    shown, share = headline(result, summary), summary.part("exposed_comm")
    assert share is not None and not shown.calm and not result.suspects
    assert ("more than computation could hide" in shown.words) == (name == "slow")
    assert (share.ns > 2 * TRANSFER_NS["slow"]) == (name == "slow")


def test_following_it_gives_the_steps_of_reading_it_at_once(run: Path) -> None:
    """Each only once its events have come. Instants of the device may move as more of its clock is known."""
    whole = {(row.rank, row.step): row for row in ddptrace.analyze(run, align=False).steps}
    for rank in range(RANKS):
        batches = followed(run, rank)
        assert [step for batch in batches for step in batch.steps] == list(range(STEPS))
        assert len(batches) > 3
        for batch in batches:
            for row in batch.tables.steps:
                if row.step in batch.steps and row.step > 0:
                    assert row.evidence is Evidence.EVENT
                    assert off_ns(row, whole[rank, row.step]) < CLOCK_NS


def off_ns(one: StepRow, other: StepRow) -> int:
    differences: list[int] = [abs(getattr(one, name) - getattr(other, name)) for name in TIMES]
    return max(differences)


def test_the_last_tie_to_the_devices_clock_outlives_its_steps(run: Path) -> None:
    """While a run goes on, the next one may come after more steps."""
    held = HeldRecords()
    held.add(RecordReader(run / "rank-00000").read())
    held.cut_at(1 << 62)
    assert held.events["kind"].tolist() == [Kind.DEVICE_CLOCK]


def test_spans_of_following_it_are_those_of_reading_it_at_once(run: Path) -> None:
    at_once = [names(tree.roots) for rows in of_result(ddptrace.analyze(run, align=False)) for tree in trees(rows)]
    made = []
    for rank in range(RANKS):
        for batch in followed(run, rank):
            made += [names(tree.roots) for tree in trees(of_batch(batch), batch.steps, strays=batch.is_last)]
    assert made == at_once


def names(roots: tuple[Node, ...] | list[Node]) -> list[tuple[object, ...]]:
    """Of a tree: keys, attributes that tell no time, and what is below."""
    return [
        (
            node.name,
            node.key,
            sorted((key, value) for key, value in node.attributes.items() if not isinstance(value, int | float)),
            names(node.children),
        )
        for node in roots
    ]


def test_metrics_have_the_parts_of_all_steps(run: Path) -> None:
    result = ddptrace.analyze(run, align=False)
    totals = Totals()
    for rank in range(RANKS):
        for batch in followed(run, rank):
            totals.take(batch)
    told = told_by(totals)
    for rank in range(RANKS):
        rows = [row for row in result.steps if row.rank == rank and row.is_seen]
        for part in ("compute", "exposed_comm", "idle"):
            expected = sum(getattr(row, f"{part}_ns") for row in rows) / 1e9
            assert told["ddptrace.breakdown.time", rank, part] == pytest.approx(expected, abs=STEPS * CLOCK_NS / 1e9)


def test_a_screen_shows_the_exposed_buckets(run: Path, name: str) -> None:
    watched = Watched(run)
    while not watched.is_over or watched.is_behind:
        watched.look()
    result = watched.result()
    assert result is not None
    summary = summarize(result)
    exposed = summary.part("exposed_comm")
    assert summary.evidence is Evidence.EVENT and exposed is not None
    assert (exposed.ratio > 0.3) == (name == "slow")
    assert "exposed-bucket" in {finding.code for finding in result.findings}


def test_a_comparison_blames_the_buckets(tmp_path: Path) -> None:
    before, after = (Path(shutil.copytree(RECORDED / name, tmp_path / name)) for name in ("fast", "slow"))
    diff = ddptrace.diff(before, after)
    cause = diff.overlap_changed_by
    assert diff.overlap is not None and diff.overlap[0] > diff.overlap[1]
    assert cause is not None and cause.change_ns > TRANSFER_NS["slow"]
    assert "exposed communication +" in diff_text(diff)
