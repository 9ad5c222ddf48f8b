"""Two workers whose large messages are counted by the network itself. `rpc_bytes.py FOLDER`.

Worker 0 writes what the loopback interface carried while each kind of call was made, into FOLDER."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

import ddptrace
from tests.programs.loopback import carried
from tests.programs.rpc_workers import fork_workers, join

N = 1 << 20  # 4 MiB of float32
PEER = "worker1"
held = torch.ones(N)
weight = torch.ones(N, requires_grad=True)


def out(x: torch.Tensor) -> None: ...


def back(n: int) -> torch.Tensor:
    return torch.ones(n)


def payload(data: bytes) -> bytes:
    return data


def most_of_a_storage(x: torch.Tensor) -> torch.Tensor:
    return x[: N * 3 // 4]


def little_of_a_storage(x: torch.Tensor) -> torch.Tensor:
    return x[: N // 4]


def one_storage_twice(x: torch.Tensor, y: torch.Tensor) -> None: ...


def kept() -> torch.Tensor:
    return held


def squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def reduced(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum()


def embedded() -> torch.Tensor:
    return weight * 2


def from_its_weight() -> None:
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [rpc.rpc_sync(PEER, embedded).pow(2).sum()])


def through_autograd(function: Callable[..., torch.Tensor], loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with dist_autograd.context() as context:
        x = torch.ones(N, requires_grad=True)
        dist_autograd.backward(context, [loss(rpc.rpc_sync(PEER, function, args=(x,)))])
        assert len(dist_autograd.get_gradients(context)) == 1


KINDS: dict[str, Callable[[], object]] = {
    "out": lambda: rpc.rpc_sync(PEER, out, args=(torch.ones(N),)),
    "back": lambda: rpc.rpc_async(PEER, back, args=(N,)).wait(),
    "payload": lambda: rpc.rpc_sync(PEER, payload, args=(bytes(4 * N),)),
    "most_of_a_storage": lambda: rpc.rpc_sync(PEER, most_of_a_storage, args=(torch.ones(N)[: N * 3 // 4],)),
    "little_of_a_storage": lambda: rpc.rpc_sync(PEER, little_of_a_storage, args=(torch.ones(N)[: N // 4],)),
    "one_storage_twice": lambda: rpc.rpc_sync(PEER, one_storage_twice, args=(held[: N * 3 // 4], held)),
    "to_here": lambda: rpc.remote(PEER, kept).to_here(),
    "aten::mul": lambda: rpc.rpc_sync(PEER, torch.mul, args=(held, 2.0)),
    "squared": lambda: through_autograd(squared, lambda y: y.pow(2).sum()),
    "scaled": lambda: through_autograd(scaled, lambda y: y.sum()),  # its gradient is one number, expanded
    "reduced": lambda: through_autograd(reduced, lambda y: y * 1),
    "embedded": from_its_weight,
}
ROUNDS = 3


def large(*parts: float | None) -> tuple[float | None, ...]:
    """Tensors of N float32, or a part of one: out, back, gradients out, gradients back."""
    return tuple(None if part is None else 4 * N * part for part in parts)


BY_HAND = {
    "out": large(1, 0, None, None),
    "back": large(0, 1, None, None),
    "payload": large(1, 1, None, None),
    "most_of_a_storage": large(1, 1, None, None),
    "little_of_a_storage": large(0.25, 0.25, None, None),
    "one_storage_twice": large(1, 0, None, None),
    "to_here": large(None, 1, None, None),
    "aten::mul": large(1, 1, None, None),
    "squared": large(1, 1, 1, 1),
    "scaled": large(1, 1, 0, 1),
    "reduced": large(1, 0, 0, 1),
    "embedded": large(0, 1, 1, None),
}
"""What one act sends, as anybody can tell who knows what it does."""


def settled() -> int:
    """`carried`, once it stands still."""
    last = -1
    while (now := carried()) != last:
        last = now
        time.sleep(0.05)
    return now


def carried_by(act: Callable[[], object]) -> int:
    before = settled()
    act()
    return settled() - before


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    seen = {}
    with ddptrace.trace(folder / "run"):
        join(rank, 2, folder)
        for name, act in KINDS.items() if rank == 0 else ():
            act()  # the connection itself
            seen[name] = min(carried_by(act) for _ in range(ROUNDS))  # what TCP sends anew can only add
        rpc.shutdown()
    if rank == 0:
        (folder / "carried.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    assert fork_workers(2, functools.partial(main, folder=Path(sys.argv[1]))) == [0, 0]
