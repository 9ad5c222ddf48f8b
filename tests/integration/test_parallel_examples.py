"""Fully sharded, tensor and pipeline parallelism: the examples tell the bytes that one calculates by hand."""

from __future__ import annotations

from pathlib import Path

import ddptrace
from tests.launch import torchrun

STEPS, BATCH, WIDTH = 6, 32, 256


def table(said: str, *, columns: int) -> list[tuple[str, ...]]:
    """The lines that hold calls and bytes in their third and fourth column."""
    cells = [line.replace(",", "").split(maxsplit=columns - 1) for line in said.splitlines()]
    return [tuple(row) for row in cells if len(row) == columns and row[2].isdecimal() and row[3].isdecimal()]


def test_fully_sharded_blocks_are_gathered_twice_a_step_and_scattered_once(tmp_path: Path) -> None:
    told = table(torchrun("../../examples/5_fully_sharded.py", tmp_path / "run"), columns=4)
    gather, scatter = "all_gather_into_tensor", "reduce_scatter_tensor"
    block, head = 4 * (WIDTH * 4 * WIDTH + 4 * WIDTH + 4 * WIDTH * WIDTH + WIDTH), 4 * (WIDTH * 2 + 2)
    blocks = {(f"blocks.{number}", op, str(times), str(block))
              for number in range(3) for op, times in ((gather, 2), (scatter, 1))}  # fmt: skip
    assert set(told) == blocks | {("Network", gather, "1", str(head)), ("Network", scatter, "1", str(head))}
    assert len(told) == len(set(told))
    rows = [row for row in ddptrace.analyze(tmp_path / "run").collectives if not row.part]
    assert len(rows) == 2 * STEPS * (3 * 3 + 2)
    assert {row.origin for row in rows} == {"fsdp"}


def test_tensor_parallel_layers_sum_activations_in_forward_and_gradients_in_backward(tmp_path: Path) -> None:
    told = table(torchrun("../../examples/6_tensor_parallel.py", tmp_path / "run"), columns=4)
    order = ("blocks.0.down", "blocks.1.down", "blocks.1.up", "blocks.0.up")  # there and back
    assert told == [(module, "all_reduce", "1", str(4 * BATCH * WIDTH)) for module in order]
    rows = [row for row in ddptrace.analyze(tmp_path / "run").collectives if not row.part]
    assert len(rows) == 2 * STEPS * len(order)
    assert {row.origin for row in rows} == {"dtensor"}


def test_a_pipeline_sends_each_micro_batch_on_and_its_gradient_back(tmp_path: Path) -> None:
    told = table(torchrun("../../examples/7_pipeline_parallel.py", tmp_path / "run"), columns=5)
    micro_batches, message = 4, 4 * (BATCH // 4) * WIDTH
    assert [row[:4] for row in told] == [
        (source, destination, str(micro_batches), str(message)) for source, destination in ("01", "10")
    ]
    sites = {row[0]: row[4] for row in told}
    assert all(site.startswith("7_pipeline_parallel.py:") for site in sites.values())
    assert sites["0"] != sites["1"]  # the first rank gives inputs, the last one targets
    rows = [row for row in ddptrace.analyze(tmp_path / "run").collectives if row.step and not row.part]
    assert {row.origin for row in rows} == {"pipeline"}
    assert len(rows) == 2 * (STEPS - 1) * 2 * micro_batches  # in the first step the ranks also tell shapes
    assert {(row.op, row.rank, row.peer) for row in rows} == {
        (op, rank, 1 - rank) for op in ("send", "recv") for rank in (0, 1)
    }
