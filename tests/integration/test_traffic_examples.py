"""What a larger batch does to the bytes that are sent: the examples answer it for DDP and for RPC."""

from __future__ import annotations

from pathlib import Path

import ddptrace
from tests.launch import torchrun

BATCHES = (16, 64, 256)


def table(said: str) -> dict[int, list[int]]:
    """The numbers of each line that begins with a batch size."""
    rows = [line.replace(",", "").split() for line in said.splitlines()]
    return {
        int(row[0]): [int(number) for number in row[1:]]
        for row in rows
        if row and all(cell.isdigit() for cell in row) and int(row[0]) in BATCHES
    }


def test_what_ddp_sends_is_the_same_for_every_batch_size(tmp_path: Path) -> None:
    told = table(torchrun("../../examples/8_traffic_ddp_batch_size.py", tmp_path))
    # two layers of 512 * 512 + 512 parameters and one of 512 + 1, in float32
    parameters = 4 * (2 * (512 * 512 + 512) + 513)
    assert told == {batch: [batch * 512 * 4, parameters, parameters] for batch in BATCHES}


def test_what_rpc_sends_at_a_layer_boundary_grows_with_the_batch(tmp_path: Path) -> None:
    told = table(torchrun("../../examples/9_traffic_rpc_layer_boundary.py", tmp_path))
    activations = {batch: batch * 1024 * 4 for batch in BATCHES}
    assert {batch: row[0] for batch, row in told.items()} == activations
    assert {batch: row[2] for batch, row in told.items()} == activations
    calls = {batch: told[batch][1] - activations[batch] for batch in BATCHES}
    assert all(0 < nbytes < 4000 for nbytes in calls.values())  # the call around the tensor
    for batch in BATCHES:
        (pair,) = (
            pair
            for pair in ddptrace.analyze(tmp_path / str(batch)).rpc_pairs
            if not pair.internal and pair.caller == "worker0" and pair.gradient_nbytes_back
        )
        assert pair.gradient_nbytes_out == 5 * batch * 10 * 4  # of the result: batch x classes, in five steps
