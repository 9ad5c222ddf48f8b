"""Each kind of collective beside what the loopback interface carried for it. `traffic_wire.py FOLDER`.

Rank 0 writes the bytes of one call of each, as the interface counted them, into FOLDER."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import ddptrace
from tests.programs.leaving import leave
from tests.programs.loopback import carried

CALLS = 3
N = 3 << 19  # float32: 6 MiB, and whole parts for two ranks or three


def whole() -> torch.Tensor:
    return torch.ones(N)


def part() -> torch.Tensor:
    return torch.ones(N // dist.get_world_size())


def parts() -> list[torch.Tensor] | None:
    """For the root."""
    return [part() for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None


def one_way() -> None:
    if dist.get_rank() == 0:
        dist.send(whole(), 1)
    elif dist.get_rank() == 1:
        dist.recv(whole(), 0)


KINDS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(whole()),
    "all_gather": lambda: dist.all_gather([part() for _ in range(dist.get_world_size())], part()),
    "all_to_all_single": lambda: dist.all_to_all_single(whole(), whole()),
    "broadcast": lambda: dist.broadcast(whole(), 0),
    "gather": lambda: dist.gather(part(), parts()),
    "scatter": lambda: dist.scatter(part(), parts()),
    "send": one_way,
    "reduce_scatter": lambda: dist.reduce_scatter(part(), [part() for _ in range(dist.get_world_size())]),
    "reduce": lambda: dist.reduce(whole(), 0),
}


def carried_by(act: Callable[[], object]) -> int:
    dist.barrier()  # its own messages are a few hundred bytes
    before = carried()
    dist.barrier()
    act()
    dist.barrier()
    return carried() - before


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seen = {}
    with ddptrace.trace(folder / "run"):
        for name, act in KINDS.items():
            seen[name] = min(carried_by(act) for _ in range(CALLS))  # what TCP sends anew can only add
    if dist.get_rank() == 0:
        (folder / "carried.json").write_text(json.dumps(seen))
    dist.barrier()
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
