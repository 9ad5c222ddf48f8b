"""`ddptrace bench collectives` on real ranks: the collectives are those that it says, of the sizes that it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.bench.experiments.collectives_ops import OPS
from tests.benches import bench, bench_that_starts_ranks, refusal
from tests.launch import environment

SIZES = (4_000, 64_000)
AS_TRACED = {
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("collectives")
    done = bench("collectives", "--sizes", "4kB,64kB,900GB", "--rounds", 2, "--steps", 3, out=out)
    assert "all_reduce over 2 ranks, 4.00 kB, 64.0 kB" in done.stderr
    assert done.stdout == (out / "collectives.md").read_text() + "\n"
    return out


def measured(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "collectives.json").read_text())["measured"][0]
    return found


def test_every_collective_is_timed_with_every_size_in_every_round_and_step(swept: Path) -> None:
    cells = measured(swept)["cells"]
    assert [(cell["op"], cell["nbytes"]) for cell in cells] == [(op, size) for op in OPS for size in SIZES]
    assert all([len(times) for times in cell["times_ns"]] == [3, 3] for cell in cells)
    assert all(cell["calls"] >= 1 and min(min(times) for times in cell["times_ns"]) > 1_000 for cell in cells)


@pytest.mark.parametrize("op", [op for op in OPS if op != "send_recv"])
def test_the_traced_run_holds_this_collective_with_these_bytes_once_a_step(swept: Path, op: str) -> None:
    rows = [row for row in ddptrace.analyze(swept / "runs" / f"{op}-2-ranks").collectives if row.op != "barrier"]
    assert {row.op for row in rows} == {AS_TRACED.get(op, op)}
    on_root = [row for row in rows if row.rank == 0 and row.step == 4]
    assert [row.nbytes for row in sorted(on_root, key=lambda row: row.seq)] == list(SIZES)


def test_a_pair_is_one_rank_that_sends_and_one_that_receives(swept: Path) -> None:
    rows = [row for row in ddptrace.analyze(swept / "runs" / "send_recv-2-ranks").collectives if row.op != "barrier"]
    assert {(row.rank, row.op) for row in rows} == {(0, "send"), (1, "recv")}
    assert {row.nbytes for row in rows} == set(SIZES)


def test_each_cell_has_the_backends_own_time_from_the_trace_of_its_call(swept: Path) -> None:
    for cell in measured(swept)["cells"]:
        assert cell["evidence"] == "backend" and cell["exec_ns"] > 1_000
        run_of = ddptrace.analyze(swept / "runs" / f"{cell['op']}-2-ranks")
        seen = [row.comm_ns for row in run_of.collectives if row.op != "barrier" and row.comm_ns is not None]
        assert min(seen) <= cell["exec_ns"] <= max(seen)


def test_a_size_that_does_not_fit_is_left_out_with_a_sentence(swept: Path) -> None:
    text = (swept / "collectives.md").read_text()
    for op in OPS:
        assert f"{op} of 900 GB over 2 ranks is skipped: it needs " in text
    assert "are available." in text and "| 900 GB" not in text


def test_the_page_asks_for_nothing_and_has_the_chart(swept: Path) -> None:
    page = (swept / "collectives.html").read_text()
    assert "default-src 'none'" in page and 'id="figure-chart-0"' in page and '<td class="">64.0 kB</td>' in page


def test_each_number_of_workers_is_a_job_of_its_own_and_an_odd_one_has_a_rank_that_stands_by(tmp_path: Path) -> None:
    words = ("--ranks", "2,3", "--ops", "all_reduce,send_recv", "--sizes", "4kB,64kB,1MB", "--rounds", 3, "--json")
    done = bench_that_starts_ranks("collectives", *words, "--steps", 1, out=tmp_path)
    assert "USDT" not in done.stderr
    told = json.loads(done.stdout)
    assert [job["ranks"] for job in told["measured"]] == [2, 3]
    assert [len(job["cells"]) for job in told["measured"]] == [6, 6]
    assert {cell["nbytes"] % 12 for cell in told["measured"][1]["cells"]} == {0}
    assert all(cell["exec_ns"] is not None for cell in told["measured"][1]["cells"])
    assert any("over 2 ranks" in words and "over 3 ranks" in words for words in told["sheet"]["words"])


def test_ranks_that_torchrun_started_measure_together_and_one_of_them_shows(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    asked = f"ddptrace bench collectives --ops broadcast --sizes 4kB --rounds 1 --out {tmp_path}"
    command = [*launcher, "-m", *asked.split()]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# Collectives: time and bandwidth") == 1 and "| broadcast | 2 " in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--sizes", "4TiB"), "'4TiB' is not a size; give bytes as in 4kB"),
        (("--ops", "allreduce"), "no collective is called 'allreduce'"),
        (("--ranks", "1"), "a collective needs at least 2 ranks"),
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal("collectives", *words, "--out", tmp_path)
