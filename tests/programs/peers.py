"""Four ranks whose messages and roots are known by hand, a run in OUT for each surface. `peers.py OUT`.

Each step, in bytes, global ranks; `pair` is ranks 1 and 3, `three` ranks 1, 2 and 3:

    0 → 1 → 2 → 3 → 0      4000 each, batch_isend_irecv
    0 → 2                  2000, received from any source
    3 → 1                  1200, in the pair
    1 → 2                  80 in two messages, by the group object of three
    2 → 3                  an object, in three: its size and its bytes are two messages
    broadcast from 3       400 in three, reduce to 3: 240 in the pair, scatter from 1: 160 each and gather to 2: 200
                           each, in the world
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ddptrace
from tests.programs.leaving import leave
from tests.programs.matrix import without_the_tap

STEPS, RANKS = 4, 4


def floats(nbytes: int) -> torch.Tensor:
    return torch.ones(nbytes // 4)


def step(rank: int, pair: Any, three: Any) -> None:
    ring(rank)
    if rank == 0:
        dist.send(floats(2000), 2, tag=5)
    if rank == 2:
        dist.recv(floats(2000), None, tag=5)
    if rank == 3:
        dist.isend(floats(1200), 1, pair).wait()
    if rank == 1:
        dist.irecv(floats(1200), 3, pair).wait()
        for tag in (1, 2):
            three.send([floats(40)], 1, tag).wait()
    if rank == 2:
        for tag in (1, 2):
            three.recv([floats(40)], 0, tag).wait()
        dist.send_object_list(["activations"], 3, three)
    if rank == 3:
        dist.recv_object_list([None], 2, three)
    rooted(rank, pair, three)


def ring(rank: int) -> None:
    there, back = (rank + 1) % RANKS, (rank - 1) % RANKS
    both = [dist.P2POp(dist.isend, floats(4000), there), dist.P2POp(dist.irecv, floats(4000), back)]
    for request in dist.batch_isend_irecv(both):
        request.wait()


def rooted(rank: int, pair: Any, three: Any) -> None:
    if rank:
        dist.broadcast(floats(400), 3, three)
    if rank in (1, 3):
        dist.reduce(floats(240), 3, group=pair)
    dist.scatter(floats(160), [floats(160)] * RANKS if rank == 1 else None, 1)
    dist.gather(floats(200), [floats(200) for _ in range(RANKS)] if rank == 2 else None, 2)
    dist.all_reduce(floats(8000))


def main(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, pair, three = dist.get_rank(), dist.new_group([1, 3]), dist.new_group([1, 2, 3])
    for surface in ("tap", "fallback"):
        if surface == "fallback":
            without_the_tap()
        with ddptrace.trace(out / surface) as trace:
            for _ in range(STEPS):
                step(rank, pair, three)
                trace.step()
    unequal(out / "unequal", rank)
    leave()


def unequal(out: Path, rank: int) -> None:
    """Rank 1 takes 40 bytes into 80; then rank 2 sends without a trace."""
    with ddptrace.trace(out):
        if rank == 0:
            dist.send(floats(40), 1)
        if rank == 1:
            dist.recv(floats(80), 0)
        if rank == 3:
            dist.recv(floats(120), 2)
    if rank == 2:
        dist.send(floats(120), 3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
