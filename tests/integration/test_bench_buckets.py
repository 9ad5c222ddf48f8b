"""`ddptrace bench buckets`, and what all benchmarks that start ranks have in common."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from tests.benches import bench, refusal
from tests.launch import environment

CAPS = ("0", "4", "all")


MLP = ("--workload", "mlp")


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddptrace", "bench", "buckets", *map(str, words)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=180, check=False)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("buckets")
    done = bench("buckets", *MLP, "--caps", ",".join(CAPS), "--rounds", 2, "--steps", 2, "--warmup", 1, out=out)
    assert "round 2 of 2" in done.stderr
    assert done.stdout == (out / "buckets.md").read_text() + "\n"
    assert done.stdout.count("# Step time over bucket cap") == 1, "one of the ranks shows it"
    return out


def measured(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "buckets.json").read_text())["measured"][0]
    return found


def test_every_cap_is_timed_in_every_round_and_step(swept: Path) -> None:
    times = measured(swept)["times_ns"]
    assert list(times) == list(CAPS)
    assert [[len(round_) for round_ in rounds] for rounds in times.values()] == [[2, 2]] * 3
    assert all(ns > 1_000_000 for rounds in times.values() for round_ in rounds for ns in round_)


def test_the_traced_runs_have_as_many_buckets_as_the_cap_makes(swept: Path) -> None:
    layouts = {cap: {row.index for row in ddptrace.analyze(swept / "runs" / f"cap-{cap}").buckets} for cap in CAPS}
    # 6 layers of a 4 MiB weight and a bias: each alone, the weight that fills a bucket, all in one
    assert {cap: len(indices) for cap, indices in layouts.items()} == {"0": 12, "4": 6, "all": 1}


def test_one_bucket_hides_nothing_and_small_ones_hide_most(swept: Path) -> None:
    true = measured(swept)["traced"]
    assert true["cap-all"]["overlap_ratio"] < 0.05, "it leaves when backward is over"
    assert true["cap-4"]["overlap_ratio"] > 0.2
    for one in true.values():
        assert one["hidden_ns"] + one["exposed_ns"] == one["comm_ns"]
        assert one["evidence"] in ("backend", "callback"), (
            "the weakest of its collectives: a busy machine loses a range"
        )


def test_the_page_asks_for_nothing_and_shows_the_table(swept: Path) -> None:
    page = (swept / "buckets.html").read_text()
    assert "default-src 'none'" in page and '<td class="">all</td>' in page and 'id="figure-chart-0"' in page


def test_ranks_that_others_started_measure_together(swept: Path) -> None:
    assert len(ddptrace.analyze(swept / "runs" / "cap-all").ranks) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--workload", "nothing"), "no workload is called 'nothing'"),
        (("--caps", "1,x"), "a cap is a number of MiB"),
        (("--ranks", "0"), "is not a list of whole numbers above zero"),
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal("buckets", *words, "--out", tmp_path)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ({"RANK": "0"}, "RANK is set and WORLD_SIZE, MASTER_ADDR, MASTER_PORT not"),
        ({"RANK": "5", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "RANK=5 is no rank of"),
    ],
)
def test_half_an_environment_of_a_launcher_is_one_sentence(
    place: dict[str, str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert sentence in refusal("buckets", "--out", tmp_path)


def test_a_rank_that_fails_ends_the_benchmark_with_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the traced runs are to be")
    done = run(*MLP, "--caps", "all", "--rounds", 1, "--steps", 1, "--out", tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "rank 0 of 2 failed" in done.stderr or "rank 1 of 2 failed" in done.stderr
