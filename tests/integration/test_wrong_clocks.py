"""Recorded runs whose clocks are made wrong, so that the truth is exact; and one under a clock that really is.

Those for a quiet machine are the acceptance: `make acceptance` on two cores that do nothing else prints each rank's
largest error, how often the stated uncertainty covers it, and transfers by the fitted clocks against those by the right
ones.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.load.run import read_run
from ddptrace.schema import MANIFEST, META, rank_folder
from tests.clock_errors import Errors, errors, stated_ns, transfer_off, transfer_ratio
from tests.command_line import ddptrace_says
from tests.conftest import need
from tests.launch import command, environment, torchrun
from tests.programs.clocked import FAKETIME
from tests.shifted_run import Wrong, shifted_run, shifted_traces

US, MS, S = 1_000, 1_000_000, 1_000_000_000
FAST, SLOW = Wrong(50 * MS, 100.0), Wrong(-50 * MS, -100.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, 6 seconds."""
    folder = tmp_path_factory.mktemp("clocks") / "run"
    torchrun("clocked.py", folder, 6)
    return folder


@pytest.fixture(scope="module")
def right(run: Path) -> Result:
    return ddptrace.analyze(run)


def codes(result: Result) -> list[str]:
    return [finding.code for finding in result.findings]


def test_ranks_of_one_machine_stay_on_their_clock(right: Result) -> None:
    assert [(row.rank, row.offset_ns, row.uncertainty_ns, row.why) for row in right.clocks] == [
        (0, 0, 0, "same clock"), (1, 0, 0, "same clock"),
    ]  # fmt: skip
    assert not any(row.shifted for row in right.clocks)


@pytest.mark.parametrize("wrong", [FAST, SLOW])
def test_a_rank_with_a_wrong_clock_is_found_out_and_brought_back(
    run: Path, right: Result, tmp_path: Path, wrong: Wrong
) -> None:
    result = ddptrace.analyze(shifted_run(run, tmp_path / "wrong", 1, wrong))
    (row,) = (row for row in result.clocks if row.rank == 1)
    assert row.shifted and row.why == "disagrees" and row.uncertainty_ns is not None
    assert abs(row.offset_ns - wrong.more(np.array([row.begin_at_ns]))[0]) < MS
    (found,) = errors(right, result)
    print(found)
    assert found.max_us < 1000 and found.coverage >= 0.95
    assert transfer_ratio(right, result) == pytest.approx(1, rel=0.05)
    assert len(found.error_ns) > 100


def test_all_that_a_rank_shows_is_brought_along(run: Path, right: Result, tmp_path: Path) -> None:
    result = ddptrace.analyze(shifted_run(run, tmp_path / "wrong", 1, FAST))
    for name in ("steps", "phases", "buckets", "collectives"):
        good, found = ([row for row in getattr(one, name) if row.rank == 1] for one in (right, result))
        assert len(good) == len(found) > 0
        for at in (field for field in getattr(right, name).columns if field.endswith("_at_ns")):
            apart = [
                abs(getattr(one, at) - getattr(other, at))
                for one, other in zip(good, found, strict=True)
                if getattr(one, at) is not None
            ]
            assert max(apart, default=0) < 1.5 * MS, (name, at)


def test_a_rank_of_the_shifted_runs_own_clock_is_shown_where_that_is_asked_for(
    run: Path, right: Result, tmp_path: Path
) -> None:
    path = shifted_run(run, tmp_path / "wrong", 1, FAST)
    result = ddptrace.analyze(path, align=False)
    told = json.loads(ddptrace_says("analyze", path, "--json", "--no-align").stdout)
    assert [row["begin_at_ns"] for row in told["steps"]] == [row.begin_at_ns for row in result.steps]
    at = np.array([row.begin_at_ns for row in right.steps if row.rank == 1])
    assert [row.begin_at_ns for row in result.steps if row.rank == 1] == (at + FAST.more(at)).tolist()
    (row,) = (row for row in result.clocks if row.rank == 1)
    assert (row.shifted, row.why) == (False, "as recorded") and abs(row.offset_ns - 50 * MS) < 2 * MS


def test_ranks_of_hosts_of_other_names_are_fitted_to_each_other(run: Path, right: Result, tmp_path: Path) -> None:
    """Without a word of which clock they read, as older runs are."""
    path = shifted_run(run, tmp_path / "hosts", 1, Wrong(0, 0.0))
    for rank in (0, 1):
        meta = path / rank_folder(rank) / META
        content = json.loads(meta.read_text()) | {"host": f"node{rank}", "boot_id": f"boot {rank}"}
        meta.write_text(json.dumps(content))
    result = ddptrace.analyze(path)
    assert [(row.why, row.shifted) for row in result.clocks] == [("same clock", False), ("fitted", True)]
    (found,) = errors(right, result)
    assert found.max_us < 1000 and found.coverage >= 0.95


@pytest.mark.parametrize("rank", [1, 4, 7])
def test_a_wrong_clock_of_one_of_eight_gpus_is_brought_back_within_30_us(
    shared_traces: Path, tmp_path: Path, rank: int
) -> None:
    folder = shared_traces / "dlrm-8ranks"
    good = ddptrace.analyze(folder)
    result = ddptrace.analyze(shifted_traces(folder, tmp_path / "wrong", f"worker{rank}_", FAST))
    assert [row.why for row in result.clocks] == ["disagrees" if one == rank else "same clock" for one in range(8)]
    found = next(one for one in errors(good, result) if one.rank == rank)
    print(found)
    assert found.max_us <= 30 and found.coverage >= 0.95
    assert transfer_ratio(good, result) == pytest.approx(1, rel=0.05)


def shown(name: str, found: list[Errors], right: Result, result: Result) -> None:
    load = os.getloadavg()[0]
    print(f"\n{name} (load {load:.1f})", *found, sep="\n  ")
    ratio, each = transfer_ratio(right, result), transfer_off(right, result)
    print(f"  transfers {ratio:.4f} of those by right clocks, one off by {each:.2%} (median)")


@pytest.mark.quiet
@pytest.mark.parametrize(("ranks", "most_us"), [(2, 50), (4, 200)])
def test_half_a_minute_of_wrong_clocks_is_brought_back(tmp_path: Path, ranks: int, most_us: float) -> None:
    run = tmp_path / "run"
    torchrun("clocked.py", run, 32, ranks=ranks)
    right = ddptrace.analyze(run)
    assert max(row.end_at_ns for row in right.clocks) - min(row.begin_at_ns for row in right.clocks) >= 30 * S
    worst, covered = 0.0, 1.0
    for rank, wrong in ((ranks - 1, FAST), (1, SLOW)):
        result = ddptrace.analyze(shifted_run(run, tmp_path / f"wrong-{rank}-{wrong.ppm}", rank, wrong))
        found = errors(right, result)
        shown(f"{ranks} ranks, rank {rank} {wrong.offset_ns / MS:+.0f} ms {wrong.ppm:+.0f} ppm", found, right, result)
        worst = max(worst, *(one.max_us for one in found))
        covered = min(covered, *(one.coverage for one in found))
        assert transfer_ratio(right, result) == pytest.approx(1, rel=0.05)
    assert covered >= 0.95 and worst <= most_us


@pytest.mark.quiet
def test_half_a_minute_under_a_clock_that_is_really_wrong_is_brought_back(tmp_path: Path) -> None:
    need(FAKETIME.is_file(), f"{FAKETIME} (apt-get install faketime)")
    run, truth = tmp_path / "run", tmp_path / "truth"
    subprocess.run(command("clocked.py", run, 32, truth), env=environment(), check=True, timeout=120)
    ties = [rank.tie_ns or 0 for rank in read_run(run).ranks]
    zero = int(json.loads((run / MANIFEST).read_text())["zero_unix_ns"])
    result = ddptrace.analyze(run)
    assert [row.why for row in result.clocks] == ["same clock", "disagrees"]
    row = result.clocks[1]
    told, machine = np.load(f"{truth}.1.npy").T
    at = machine + ties[0] - zero
    more = told + ties[1] - zero - at
    fitted = row.offset_ns + np.rint(row.drift_ratio * (at - row.begin_at_ns)).astype(np.int64)
    found = Errors(1, np.abs(fitted - more), stated_ns([replace(row, rank=1)], at))
    print(f"\nfaketime (load {os.getloadavg()[0]:.1f})", found, sep="\n  ")
    assert found.max_us <= 50 and found.coverage >= 0.95
